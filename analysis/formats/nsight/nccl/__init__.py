"""What NCCL marks in an export: its functions with what they were given, and communicators."""
