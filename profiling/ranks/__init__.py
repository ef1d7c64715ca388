"""From one process to working ranks: start them, join process groups, end them."""
