"""`python -m questprof`."""

from questprof.cli import main

main()
