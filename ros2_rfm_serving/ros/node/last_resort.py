"""End of a process in which no Python runs any more, by the kernel and libc alone, with every thread's stack in the log.

SIGALRM ends it (`dump_at_alarm`). One fixed alarm would also end a process that was stopped meanwhile, since the kernel's clocks
run on. So there are two stages. A timer expires when no Python has put it off for a while, and sets an alarm for some seconds
later. A process that was stopped and continues gets the first signal at once, and puts both off before the second.

A handler that works while Python's global lock is held has to be a function of libc. This one is alarm(2), whose argument is the
number of the signal that it handles: after SIGTRAP, 5, it sets an alarm in 5 s, and after SIGUSR1, 10, in 10 s.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import os
import signal
import socket
import sys

SILENT_S = 4.0
"""Time without Python, while the process ends, before the alarm is set."""
STAGE = signal.SIGTRAP
"""Signal of the first stage. Only debuggers use it, and they take it before any handler does."""
F_SETSIG = 10
"""Command of fcntl(2) for which Python has no name."""


class _SigEvent(ctypes.Structure):
    """`struct sigevent`; a `sigev_notify` of 0 is SIGEV_SIGNAL."""

    _fields_ = (
        ("sigev_value", ctypes.c_void_p),
        ("sigev_signo", ctypes.c_int),
        ("sigev_notify", ctypes.c_int),
        ("padding", ctypes.c_char * 48),
    )


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec` that expires once."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class LastResort:
    """Both stages for one process. Nothing happens before the first `put_off`."""

    def __init__(self) -> None:
        self._timer: ctypes.c_void_p | None = None
        self._libc = _libc_with_timers() if sys.platform == "linux" else None

    def put_off(self) -> None:
        """Begin both stages anew, because Python runs. On a system without such timers a single alarm has to do."""
        if self._libc is None:
            signal.setitimer(signal.ITIMER_REAL, SILENT_S + STAGE)
            return
        self._timer = self._timer or self._made(self._libc)
        self._set(SILENT_S)
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def within(self, seconds: float) -> None:
        """End the process after this time, whatever runs meanwhile."""
        if self._libc is not None and self._timer is not None:
            self._set(0.0)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def _made(self, libc: ctypes.CDLL) -> ctypes.c_void_p:
        _handle_by_alarm(STAGE)
        timer, event = ctypes.c_void_p(), _SigEvent(sigev_signo=STAGE)
        if libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)):  # CLOCK_MONOTONIC
            raise OSError(ctypes.get_errno(), "timer_create")
        return timer

    def _set(self, seconds: float) -> None:
        """Set the timer; 0: never."""
        assert self._libc is not None
        spec = _TimerSpec(value_s=int(seconds), value_ns=int(seconds % 1.0 * 1e9))
        self._libc.timer_settime(self._timer, 0, ctypes.byref(spec), None)


def dump_at_alarm() -> None:
    """Make SIGALRM write every thread's stack to the log, and then end the process, as it does by default."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with contextlib.suppress(AttributeError, ValueError, OSError, RuntimeError):  # a process without a standard error
        faulthandler.register(signal.SIGALRM, all_threads=True, chain=True)


def alarm_when_readable(asked: socket.socket) -> None:
    """Make the kernel set an alarm when a signal is written to `asked`, also while no Python runs; a running thread puts it off.
    The kernel sends SIGUSR1 as soon as there is something to read."""
    _handle_by_alarm(signal.SIGUSR1)
    fcntl.fcntl(asked, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(asked, F_SETSIG, signal.SIGUSR1)
    fcntl.fcntl(asked, fcntl.F_SETFL, fcntl.fcntl(asked, fcntl.F_GETFL) | os.O_ASYNC)


def _handle_by_alarm(number: signal.Signals) -> None:
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(number, ctypes.cast(libc.alarm, ctypes.c_void_p))


def _libc_with_timers() -> ctypes.CDLL | None:
    """Return the library that has timer_create(2): libc since glibc 2.34, librt before."""
    for name in (None, "librt.so.1"):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(name, use_errno=True)
            library.timer_create.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
            library.timer_settime.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
            return library
    return None
