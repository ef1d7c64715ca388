"""Draw the tables of a run as a timeline of all ranks on one clock, in Perfetto's format. No file is opened here."""
