"""What every reader of trace files returns, and what all of them need."""
