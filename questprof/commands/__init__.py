"""One file a command: its options, one call, what it prints. Heavy imports stay inside the command."""
