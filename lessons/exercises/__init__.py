"""Exercises for the reader; `python lessons/check.py N` checks the exercises of lesson N."""
