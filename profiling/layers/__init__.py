"""`layers`: measure time, memory and power of each layer of a model, or of single layers, on one device."""
