"""Coaches that ask a model: evidence, prompts and the parser of replies; what coaches around coaches share."""
