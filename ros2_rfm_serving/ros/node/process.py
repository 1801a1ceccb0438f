"""Lifetime of a node's process, apart from ROS: the signals that end it, and its exit. The module is quick to import."""

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
"""Environment variable of a node that must not outlive the process that started it; its value is that process' id."""
EXIT_CONFIGURATION = 78
"""Exit code for unusable arguments, parameters or files (EX_CONFIG of sysexits.h): another start would fail in the same way."""
EXIT_END_HUNG = 71
"""Exit code of a process whose end hung in a call that did not return (EX_OSERR)."""
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PR_SET_PDEATHSIG = 1
HELP_FLAGS = {"-h", "--help"}


class LogLevel(str, enum.Enum):
    """Log levels that ROS knows; a node with any other one does not start."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"
    FATAL = "fatal"


class Ending:
    """Handling of SIGINT and SIGTERM in this process.

    Before `in_order` there is nothing to finish, and the first signal ends the process at once, with 0. Afterwards it sets `asked`,
    which the main loop polls to end in order. After the first signal further ones are ignored, to the last instruction of the
    process: a terminal's Ctrl-C and the launcher's own signal arrive as two."""

    def __init__(self) -> None:
        self.asked = False
        self._orderly = False
        for number in ENDING_SIGNALS:
            signal.signal(number, self._take)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)  # undo the mask of the parent: Ray blocks them in its children

    def in_order(self) -> None:
        self._orderly = True

    def _take(self, number: int, frame: FrameType | None) -> None:
        ignore_signals()
        self.asked = True
        if not self._orderly:
            os._exit(0)


def ignore_signals() -> None:
    """Ignore signals by a handler that does nothing: with SIG_IGN Python complains of a pending signal."""
    for number in ENDING_SIGNALS:
        signal.signal(number, lambda *_: None)


def end_with_parent() -> None:
    """Make a supervised node end when its supervisor does, for any reason (Linux; elsewhere an orderly end has to do)."""
    if os.environ.get(SUPERVISED) and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(os.environ[SUPERVISED]):  # the process that adopts orphans, which need not be process 1
            raise SystemExit("the supervisor is gone")


def leave(code: int) -> NoReturn:
    """End the process with its work done, without finalising the interpreter.

    Python would restore the default signal handlers, so that a second Ctrl-C kills a process that has ended in order; wait for
    threads that plan or load; and destroy objects and C++ statics in an order of its own under the threads of DDS and of the
    engines."""
    ignore_signals()
    atexit._run_exitfuncs()  # clean-up of libraries, which may have processes of their own
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # logs written from C
    os._exit(code)
