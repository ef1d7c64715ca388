"""Logs of any size -> tables whose size does not depend on it, in memory that does not either."""
