"""What a step would take if something were different: scenarios as people write them."""
