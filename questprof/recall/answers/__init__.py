"""Answers from the stored rows of a recall profile: what was lost, where, why, and what to do. Pure."""
