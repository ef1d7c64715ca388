"""A folder of trace files -> a Run: which file is which rank, and the tables of all of them."""
