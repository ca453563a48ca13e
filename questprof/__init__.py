"""questprof: will Quest pay off on this GPU, with this model's shape, at these lengths, and why."""

__version__ = "0.1.0"
