"""The tables of a run -> a timeline of all its ranks on one clock, in Perfetto's format. No file is opened here."""
