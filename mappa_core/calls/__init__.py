"""API calls to model providers: rate limits, retries, prices, and policies behind an API."""
