"""Agents written elsewhere: a program with any OpenAI-compatible client plays on stage, and is trained unchanged."""
