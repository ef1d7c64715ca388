"""Read Kineto's JSON, as torch.profiler writes it. Only this folder knows its keys."""
