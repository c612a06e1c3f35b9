"""OpenAI's wire formats: `completions` and `responses`, and the types that both share."""
