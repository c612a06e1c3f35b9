"""External agents: a program that uses any OpenAI-compatible client acts in rollouts, and is trained unchanged."""
