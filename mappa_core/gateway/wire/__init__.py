"""How OpenAI's clients ask and are answered: as `completions` or `responses`, and what both come to."""
