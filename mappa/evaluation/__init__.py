"""Held-out evaluation, its statistics, and the evaluation of coaches."""
