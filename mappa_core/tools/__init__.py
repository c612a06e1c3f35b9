"""Tools of agents: parsing calls in replies, running them, and the workspace with the history of its files."""
