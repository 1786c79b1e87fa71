"""Evaluation: how much of a data set a network gets right, within a run or beside it."""
