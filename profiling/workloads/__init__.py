"""What is trained: models and data, by the names of the command line."""
