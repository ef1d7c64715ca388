"""A module of a script, which happens to have the name of our package in a checkout."""

MINE = "profiling of the script"
