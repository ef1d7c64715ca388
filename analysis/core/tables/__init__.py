"""The columns of every table: dtype, unit and meaning, declared once."""
