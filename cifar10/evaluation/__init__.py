"""Evaluates a trained model, during a run or separately; classifies images with it and exports it."""
