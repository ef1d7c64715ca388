"""Exports of Nsight Systems: SQLite databases, each of one session with all processes that it traced."""
