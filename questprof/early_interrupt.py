"""An interrupt while the command line is imported ends the process as it ends any other: no traceback.

Importing this begins it, `over` ends it. A process that ignores interrupts, or has a handler, keeps that.
"""

from __future__ import annotations

import signal
import threading

_begun = (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _begun:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def over() -> None:
    """From here on an interrupt is a KeyboardInterrupt again."""
    global _begun
    if _begun:
        _begun = False
        signal.signal(signal.SIGINT, signal.default_int_handler)
