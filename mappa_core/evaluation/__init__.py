"""Held-out runs and what can be said of them."""
