"""From one process to ranks at work: starting them, process groups, and how they end."""
