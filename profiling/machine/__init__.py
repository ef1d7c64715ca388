"""The machine: versions, devices, memory, power, and processes that must not outlive others."""
