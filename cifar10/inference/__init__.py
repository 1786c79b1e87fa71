"""Inference: classification of images with a trained model, and its export."""
