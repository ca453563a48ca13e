"""Samples of stages: loops, when they stop, whether they drift, what the machine did meanwhile."""
