"""From a grid to a profile: planned, bound, timed block by block, resumed, merged."""
