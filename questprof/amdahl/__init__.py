"""What Quest is worth in a whole decode step: Amdahl's law over measured parts."""
