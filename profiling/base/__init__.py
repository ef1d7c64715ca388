"""What all commands share. Only `torch_private` knows torch."""
