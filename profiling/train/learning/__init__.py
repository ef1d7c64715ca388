"""How a model learns: optimizer, learning rate, one step, and scores."""
