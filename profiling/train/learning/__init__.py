"""How a model learns: the optimizer and its rate, one step, and the scores."""
