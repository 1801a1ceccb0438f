"""When a benchmark that is told to end does."""

from __future__ import annotations

import os
import signal

import pytest

from lab.benchmarks.processes import told_to_end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_whoever_looks(number: signal.Signals) -> None:
    before, done = signal.getsignal(number), []
    with pytest.raises(KeyboardInterrupt), told_to_end() as look:
        os.kill(os.getpid(), number)
        done.append("what it came in the middle of")
        look()
        done.append("what comes after")
    assert done == ["what it came in the middle of"] and signal.getsignal(number) is before


def test_whoever_never_looks_ends_at_the_end_of_the_block() -> None:
    with pytest.raises(KeyboardInterrupt), told_to_end():
        os.kill(os.getpid(), signal.SIGINT)


def test_the_second_signal_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt), told_to_end():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it waited")


def test_without_a_signal_nothing_is_raised() -> None:
    with told_to_end() as look:
        look()
