"""A training run: its directory, checkpoints, records, summaries, progress and sessions."""
