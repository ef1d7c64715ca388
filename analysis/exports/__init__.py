"""Export measurements in the formats of other tools."""
