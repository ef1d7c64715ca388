"""A package of a user."""
