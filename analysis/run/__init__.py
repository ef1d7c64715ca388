"""Make a Run from a folder of trace files: the rank of each file, and the tables of all of them."""
