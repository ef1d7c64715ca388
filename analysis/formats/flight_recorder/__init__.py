"""Read dumps of PyTorch's flight recorder: the last calls of every rank, and which of them finished."""
