"""`lab`: run the experiments of the reports on this machine, by the other commands, and write one page."""
