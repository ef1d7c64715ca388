"""After the traces of a capture: pack them beside training, gather them on rank 0, analyse them there."""
