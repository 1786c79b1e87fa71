"""A training run: its directory, checkpoints, records, summaries and progress."""
