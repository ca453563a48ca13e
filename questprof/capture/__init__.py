"""Queries, keys and values of a real model, layer by layer on disk."""
