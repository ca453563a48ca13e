"""From which length Quest pays: measured, modelled, and what it is worth on real traffic."""
