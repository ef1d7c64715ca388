"""What to train: models and data, by their names on the command line."""
