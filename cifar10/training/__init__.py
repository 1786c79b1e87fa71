"""Training: the plan of a run, the graph of a step, the loop that takes steps, and both from Python."""
