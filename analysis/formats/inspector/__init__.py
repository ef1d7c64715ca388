"""What NCCL Inspector, NCCL's profiler plugin, writes: lines of JSON, one per collective that ended."""
