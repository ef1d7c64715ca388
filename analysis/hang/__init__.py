"""Find ranks that are missing from a collective, from dumps of the flight recorder."""
