"""What all commands share. Knows no torch, but for `torch_private`."""
