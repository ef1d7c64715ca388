"""What a step would take if something were different: scenarios by name, and the usual ones."""
