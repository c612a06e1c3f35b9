"""Crash tests of coaches: known faults are planted in plays that succeeded, and the coach is asked who is to blame."""
