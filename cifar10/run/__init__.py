"""A training run: its directory, checkpoints, records, curves and progress."""
