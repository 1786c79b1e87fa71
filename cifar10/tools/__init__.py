"""What looks at a run: what it would do, where its time goes, what happened in a step, what it feeds its network."""
