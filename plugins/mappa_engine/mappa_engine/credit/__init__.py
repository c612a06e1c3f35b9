"""Estimators and shapers that core can do without."""
