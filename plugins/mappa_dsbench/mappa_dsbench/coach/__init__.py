"""The coach without a model: rules over contracts, tool results and skill, and blame by reruns on reference files."""
