"""The machine: versions, devices, memory, power, and child processes that end with their parent."""
