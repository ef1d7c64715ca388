"""Tell what filled memory from snapshots of torch's allocator, one per rank."""
