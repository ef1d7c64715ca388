"""Read exports of Nsight Systems: SQLite databases, each with all processes of one session."""
