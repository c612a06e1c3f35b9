"""Storage of a run: folder, records, checkpoints and summary."""
