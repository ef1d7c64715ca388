"""Read traces of torch 2.14 and later in Perfetto's format (`.pftrace`)."""
