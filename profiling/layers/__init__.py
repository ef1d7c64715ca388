"""`layers`: time, memory and power of every layer of a model, or of single ones, on one device."""
