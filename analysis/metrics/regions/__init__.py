"""Where in the model time goes: ranges of CPU threads, and what devices did for them."""
