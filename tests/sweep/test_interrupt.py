"""The first Ctrl-C is noted, the second one interrupts, and the handler goes with the block."""

import os
import signal
import threading

import pytest

from questprof.sweep.interrupt import Interrupt


def test_one_is_noted_and_two_interrupt() -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(said.append) as interrupt:
        assert not interrupt.asked()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.asked()
        assert len(said) == 1
        assert "once more" in said[0]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_outside_the_main_thread_nothing_is_touched() -> None:
    asked: list[bool] = []

    def enter() -> None:
        with Interrupt(lambda text: None) as interrupt:
            asked.append(interrupt.asked())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert asked == [False]
