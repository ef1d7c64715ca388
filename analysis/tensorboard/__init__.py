"""Results in TensorBoard: a tab with the reports of all runs, and what its own views need to be right."""
