"""Read snapshots of torch's caching allocator, as `torch.cuda.memory._dump_snapshot` writes them."""
