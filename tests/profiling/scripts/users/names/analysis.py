"""The same of our other package."""

MINE = "analysis of the script"
