"""A training run: its directory, checkpoints, summaries, hooks, and the loop."""
