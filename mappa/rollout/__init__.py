"""Rollouts: run a workflow on many stages at once, live or replayed."""
