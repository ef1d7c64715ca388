"""Where readers and metrics meet: the tables of one run."""
