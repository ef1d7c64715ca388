"""What follows the traces of a capture: packed beside training, brought together on rank 0, analysed there."""
