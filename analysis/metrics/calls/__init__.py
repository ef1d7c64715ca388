"""Calls of collectives with their metadata, rank by rank."""
