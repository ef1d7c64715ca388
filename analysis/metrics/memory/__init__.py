"""Memory of each rank's devices: what filled it at its peak, and what grows from step to step."""
