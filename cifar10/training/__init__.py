"""Plans a run, builds the graph of a step, takes the steps, and provides the Python API."""
