"""Results on a terminal or as a document: one screen, the whole summary, facts and warnings in words."""
