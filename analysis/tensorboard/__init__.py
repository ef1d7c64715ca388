"""Show results in TensorBoard: a tab with the reports of all runs, and input for its own views."""
