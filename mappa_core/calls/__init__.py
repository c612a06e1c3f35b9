"""Calls of providers: limits, another try, prices, and policies behind an API."""
