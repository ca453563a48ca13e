"""The real command line over a CPU whose caches are said to be small, so that a ceiling takes no seconds.

Run as a program: `python small_sweep.py sweep ...`. One thread, so that tests beside it cost it less; all but
that and the reader's buffer is the real thing.
"""

from __future__ import annotations

import os
import sys

os.environ["NUMBA_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # read at import

from questprof import ceilings, cli, environment

if __name__ == "__main__":
    environment.cpu_last_level_cache_bytes = lambda: 1 << 16
    ceilings.DEFAULT_CPU_BUFFER_BYTES = 4 << 20
    sys.argv[0] = "questprof"
    cli.main()
