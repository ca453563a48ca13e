"""Doctor, sweep, bytes and amdahl in one run: one page and one sentence, and the gate of a CI job on it."""
