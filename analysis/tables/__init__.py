"""The tables of a run: what each consists of, means and needs, and the function that makes it. A module for a table"""
