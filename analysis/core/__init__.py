"""The basis: intervals, kinds of activities, conventions, schemas. No trace file is read here."""
