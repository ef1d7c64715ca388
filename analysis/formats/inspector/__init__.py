"""Read logs of NCCL Inspector, NCCL's profiler plugin: lines of JSON, one per finished collective."""
