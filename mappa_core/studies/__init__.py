"""Analyses of teams, runs and coaches: none of them changes a weight."""
