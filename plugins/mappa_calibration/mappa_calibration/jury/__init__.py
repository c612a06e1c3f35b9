"""Juries: what the verdicts of several coaches are worth together, learned from labelled runs."""
