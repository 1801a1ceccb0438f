"""Watch for calls of the middleware that do not return.

It names the call on which a node's executor thread hangs, and ends a process whose end hangs there. A process that is killed may
hold a mutex of shared memory, and the next process to publish waits for it for ever. That may also be a node that starts, so the
watch begins before the node is made. It has two layers, because a publish call of rclpy holds Python's global lock, so that no
other thread of Python runs while it hangs:

    a thread of Python     names the call in the log; while the node ends it closes files and leaves with `EXIT_END_HUNG`
    the C level            writes every thread's stack to the log (faulthandler); while the node ends, or 10 s after it was asked to
                           while it hung, SIGALRM ends the process (`last_resort.py`)

Time in which the process does not run, because it is stopped or frozen, does not count in either layer. The watch calls no
middleware, not even to log. A node at work is named and continues, since the middleware may come back.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import ClassVar

from ros2_rfm_serving.ros.node import last_resort
from ros2_rfm_serving.ros.node.process import ENDING_SIGNALS, EXIT_END_HUNG

LOOK_PERIOD_S = 0.5
HANGS_AFTER_S = 5.0
"""Time in one call of the middleware, while the node is at work, after which the call counts as hanging."""
FROZEN_AFTER_S = 2.0 * HANGS_AFTER_S
"""Time without a poll of the thread after which a call is known to hold Python's global lock."""
SAYS_AGAIN_S = 30.0
END_STEP_S = 6.0
"""Time limit of a step of the end, and of a middleware call after the process was asked to end."""
CLOSE_S = 2.0
"""Time limit for closing files in the thread that leaves."""
LAST_RESORT_S = 1.0
"""Additional time after both, when SIGALRM ends the process. The sum of the three is less than 10 s."""
PUBLISH = "publish"
MIDDLEWARE = ("rclpy",)
"""Packages whose calls may block on other processes."""


class HangWatch:
    """Hang watch of the process of one node; the thread that runs the executor creates it, calls `beat` and ends it.

    watch = HangWatch(); node = ...; watch.is_made("push_1", close_files)
    while ...: spin(); watch.beat()
    watch.ends("draining"); ...; watch.ends("destroying the node"); ...
    """

    of_process: ClassVar[HangWatch | None] = None
    """The watch of this process; None: there is none."""

    def __init__(self) -> None:
        HangWatch.of_process = self
        self._name = Path(sys.argv[0]).stem
        """Program name, until there is a node."""
        self._close_files: Callable[[], object] = lambda: None
        self._watches_interpreter, self._dumps = True, False
        self._thread_id = threading.get_ident()
        self._beat_s = time.monotonic()
        self._step, self._limit_s = "", END_STEP_S
        """Present step of the end; empty: the node is at work."""
        self._call: FrameType | None = None
        """Middleware call of the executor's thread at the last poll; the reference keeps the next call a different object."""
        self._call_since_s = 0.0
        self._said_s: float | None = None
        """Time at which the hang was reported; None: the executor responds."""
        self._asked, asks = socket.socketpair()
        self._asks = asks
        for end in (self._asked, asks):
            end.setblocking(False)
        signal.set_wakeup_fd(asks.fileno(), warn_on_full_buffer=False)  # a hanging thread runs no handler of Python
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a child's signals do not concern this process
        last_resort.dump_at_alarm()
        if sys.platform == "linux":
            last_resort.alarm_when_readable(self._asked)
        self._last_resort = last_resort.LastResort()
        threading.Thread(target=self._run, name="hang watch", daemon=True).start()

    def is_made(self, name: str, close_files: Callable[[], object], *, watches_interpreter: bool) -> None:
        """Register the node that was made. name: the node's name in the log. close_files: function without calls of the
        middleware. watches_interpreter: False when the node does so itself."""
        self._name, self._close_files, self._watches_interpreter = name, close_files, watches_interpreter
        self.beat()

    def beat(self) -> None:
        """Record that the executor's thread is not blocked."""
        self._beat_s = time.monotonic()

    def ends(self, step: str, limit_s: float = END_STEP_S) -> None:
        """Record that the process ends and begins `step`, a text for the log. limit_s: until the next step or the next `beat`."""
        if not self._step:
            self._begin_end()
        self._step, self._limit_s = step, limit_s
        self.beat()
        self._last_resort.put_off()

    def _begin_end(self) -> None:
        """Stop the alarm on further signals of the same kind: `LastResort` sets it from now on."""
        fcntl.fcntl(self._asked, fcntl.F_SETFL, fcntl.fcntl(self._asked, fcntl.F_GETFL) & ~os.O_ASYNC)

    # --- the thread ---

    def _run(self) -> None:
        looked_s = time.monotonic()
        while True:
            self._watch_interpreter()
            self._hear_signals()
            now_s = time.monotonic()
            if now_s - looked_s > 4.0 * LOOK_PERIOD_S:  # the whole process did not run, because it was stopped for example
                self._beat_s = now_s
                self._report_pause(now_s - looked_s)
            looked_s = now_s
            if self._step:
                self._last_resort.put_off()
            self._look(now_s)

    def _watch_interpreter(self) -> None:
        """Begin or cancel the dump of stacks. Only this thread does both, so that none begins after it was cancelled."""
        watches = self._watches_interpreter and not self._step
        with contextlib.suppress(ValueError, OSError, RuntimeError):  # a process without a standard error
            if watches:
                faulthandler.dump_traceback_later(FROZEN_AFTER_S, repeat=True)
            elif self._dumps:
                faulthandler.cancel_dump_traceback_later()
        self._dumps = watches

    def _hear_signals(self) -> None:
        """Wait for signals for one polling period, and handle them."""
        poll = select.poll()  # unlike select(2) it takes any file descriptor number
        poll.register(self._asked, select.POLLIN)
        numbers = self._asked.recv(64) if poll.poll(1e3 * LOOK_PERIOD_S) else b""
        if not self._step and any(number in numbers for number in ENDING_SIGNALS):
            self.ends("at work, when it was asked to end")
        elif numbers and not self._step:
            signal.setitimer(signal.ITIMER_REAL, 0.0)  # another signal, which does not end the process

    def _look(self, now_s: float) -> None:
        call = self._middleware_call() if now_s - self._beat_s > LOOK_PERIOD_S else None
        if call is not self._call:
            self._call, self._call_since_s = call, now_s
        since_s = now_s - self._call_since_s
        if self._step:  # no single middleware call may take long, in any step
            if now_s - self._beat_s > self._limit_s or (call is not None and since_s > END_STEP_S):
                self._leave(now_s - self._beat_s)
        elif call is not None and since_s > HANGS_AFTER_S:
            self._say_hang(call, since_s, now_s)
        elif call is None and self._said_s is not None:
            self._said_s = None
            self._say("the middleware came back, and the node goes on")

    def _report_pause(self, seconds: float) -> None:
        """Log that the process did not run: faulthandler's timer runs on, so it may have written stacks for that reason alone."""
        if self._dumps and seconds > FROZEN_AFTER_S:
            why = "it was stopped, its machine was suspended, or a call held Python's lock"
            self._say(f"the process did not run for {seconds:.0f} s ({why}); stacks above are of that time", level="WARN")

    def _say_hang(self, call: FrameType, since_s: float, now_s: float) -> None:
        if self._said_s is None or now_s - self._said_s > SAYS_AGAIN_S:
            self._said_s = now_s
            words = f"hangs: its executor has been inside {_name(call)} for {since_s:.0f} s"
            self._say(f"{words}; until that comes back the node publishes and answers nothing", stack=True)

    def _leave(self, since_s: float) -> None:
        self._last_resort.within(CLOSE_S + LAST_RESORT_S)
        call = self._middleware_call()
        inside = _name(call) if call is not None else "its own code"
        words = f"its end hangs: it has been inside {inside} for {since_s:.0f} s ({self._step})"
        self._say(f"{words}; the process leaves with exit code {EXIT_END_HUNG}", stack=True)
        closing = threading.Thread(target=self._close_files, name="closing files", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            self._say("its files could not be closed in time")
        os._exit(EXIT_END_HUNG)

    def _middleware_call(self) -> FrameType | None:
        """Return the middleware call that the executor's thread is in; None: it is in none."""
        frame = innermost = sys._current_frames().get(self._thread_id)
        while frame is not None and frame.f_code.co_name != PUBLISH:
            frame = frame.f_back
        return frame or (innermost if innermost is not None and _is_middleware(innermost) else None)

    def _say(self, words: str, *, level: str = "ERROR", stack: bool = False) -> None:
        """Write to the standard error, because the logger publishes as well."""
        lines = [f"[{level}] [{time.time():.9f}] [{self._name}]: {words}"]
        if stack and (frame := sys._current_frames().get(self._thread_id)) is not None:
            lines += ["".join(traceback.format_stack(frame)).rstrip()]
        with contextlib.suppress(OSError):
            os.write(2, ("\n".join(lines) + "\n").encode(errors="replace"))


def progress() -> None:
    """Record that a long step of the end makes progress; to be called on the executor's thread."""
    if HangWatch.of_process is not None:
        HangWatch.of_process.beat()


def _is_middleware(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in MIDDLEWARE


def _name(call: FrameType) -> str:
    name = call.f_code.co_name
    return f"publish of {_topic(call)}" if name == PUBLISH else f"{name} of {Path(call.f_code.co_filename).name}"


def _topic(frame: FrameType) -> str:
    """Return the topic of the publisher whose call this is."""
    publisher = frame.f_locals.get("self")
    try:
        return str(getattr(publisher, "topic_name", None) or type(publisher).__name__)
    except Exception:  # the publisher is destroyed
        return "a publisher"
