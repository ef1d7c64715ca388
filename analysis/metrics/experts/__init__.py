"""Experts: how unevenly tokens are routed to ranks, and what waiting for the busiest rank costs."""
