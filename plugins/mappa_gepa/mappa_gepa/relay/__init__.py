"""A team that needs no key: three agents follow the instructions that they find in their prompts."""
