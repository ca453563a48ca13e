"""Two sides of one grid, stage by stage, from their raw samples."""
