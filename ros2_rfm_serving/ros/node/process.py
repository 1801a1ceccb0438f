"""The life of a node's process, apart from ROS: which signals end it and when, and how it leaves. Quick to import."""

from __future__ import annotations

import atexit
import ctypes
import enum
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

SUPERVISED = "RFM_SERVING_SUPERVISED"
"""In the environment of a node that must not outlive the process that started it: that one's id."""
EXIT_CONFIGURATION = 78
"""Its arguments, parameters or files cannot be used (EX_CONFIG of sysexits.h): started again it would end again."""
EXIT_END_HUNG = 71
"""Its end hung in a call that did not come back (EX_OSERR)."""
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PR_SET_PDEATHSIG = 1
HELP_FLAGS = {"-h", "--help"}


class LogLevel(str, enum.Enum):
    """Those that ROS knows; a node that is given another one does not start."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"
    FATAL = "fatal"


class Ending:
    """How SIGINT and SIGTERM end this process.

    Before `in_order` nothing has begun that would have to be brought to an end: the first one ends the process at once, with 0.
    Afterwards it sets `asked`, and whoever looks there ends in order. From the first one on they are ignored, to the last
    instruction of the process: a terminal's Ctrl-C and the launcher's own signal come as two.
    """

    def __init__(self) -> None:
        self.asked = False
        self._orderly = False
        for number in ENDING_SIGNALS:
            signal.signal(number, self._take)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)  # of who started it, as Ray has it of what it starts

    def in_order(self) -> None:
        self._orderly = True

    def _take(self, number: int, frame: FrameType | None) -> None:
        ignore_signals()
        self.asked = True
        if not self._orderly:
            os._exit(0)


def ignore_signals() -> None:
    """By a handler that does nothing: with SIG_IGN Python complains of a signal that it has taken and not handed on yet."""
    for number in ENDING_SIGNALS:
        signal.signal(number, lambda *_: None)


def end_with_parent() -> None:
    """A supervised node ends when its supervisor does, however that happened (Linux; elsewhere an orderly end has to do)."""
    if os.environ.get(SUPERVISED) and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(os.environ[SUPERVISED]):  # whoever takes in orphans, which need not be process 1
            raise SystemExit("the supervisor is gone")


def leave(code: int) -> NoReturn:
    """Ends the process with its work done, and without taking the interpreter apart.

    Python would give the signals back to the system, so that a second Ctrl-C kills what has ended in order; wait for threads that
    plan or load; and destroy objects and C++ statics in an order of its own under the threads of DDS and of the engines.
    """
    ignore_signals()
    atexit._run_exitfuncs()  # what libraries clean up, such as processes of their own
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # what was logged from C
    os._exit(code)
