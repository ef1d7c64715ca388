"""Tables in, tables out: no file is opened below here."""
