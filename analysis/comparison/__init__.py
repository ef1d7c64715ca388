"""Captures of two configurations, and what their steps differ in."""
