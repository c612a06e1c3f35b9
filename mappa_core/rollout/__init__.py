"""Rollouts: a workflow on stage, live or replayed, many at once."""
