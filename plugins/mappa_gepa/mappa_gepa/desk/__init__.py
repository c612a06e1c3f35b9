"""A team of two small models: their prompts decide what they can say, and their weights what they do say."""
