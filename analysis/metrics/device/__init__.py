"""Where the time of a device went, by kind, kernel and operator."""
