"""Inspects a training without running it: checks it, or measures its steps."""
