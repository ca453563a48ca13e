"""What this machine can measure: facts from the edge, findings from facts, and the next command to type."""
