"""Answers for agents that read traces: short, structured, and each number with the row that holds it."""
