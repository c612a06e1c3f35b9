"""LLM coaches: evidence, prompts, reply parsing, ensembles, bias correction and drift monitoring."""
