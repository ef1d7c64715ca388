"""What NCCL attaches to its ranges in an export: arguments of its functions, and communicators."""
