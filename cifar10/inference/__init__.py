"""Inference: what a run has learned, applied to pictures or exported."""
