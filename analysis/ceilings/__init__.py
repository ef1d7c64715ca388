"""What the links reach without any training, and how a run compares with it."""
