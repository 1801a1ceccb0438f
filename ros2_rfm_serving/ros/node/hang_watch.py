"""Notices a node whose executor thread does not come back from the middleware, names the call, and ends one whose end hangs there.

A process that is killed may hold a mutex of shared memory, and whoever publishes next waits for it for ever. That may be a node
that starts, too, so the watch begins before the node is made. Two layers, because a
publish call of rclpy holds Python's global lock, so that no other thread of Python runs while it hangs:

    a thread of Python     names the call in the log; while the node ends it closes files and leaves with `EXIT_END_HUNG`
    the C level            writes every thread's stack to the log (faulthandler); while the node ends, or 10 s after it was asked to
                           while it hung, SIGALRM ends the process (`last_resort.py`)

Time in which the process does not run, as one that is stopped or frozen does not, counts neither here nor there.

Nothing here asks the middleware, not even to log. A node at work is named and goes on: the middleware may come back.
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
"""In one call of the middleware, at work."""
FROZEN_AFTER_S = 2.0 * HANGS_AFTER_S
"""Without a look of the thread: a call holds Python's global lock."""
SAYS_AGAIN_S = 30.0
END_STEP_S = 6.0
"""For a step of the end, and for the middleware to come back after the process was asked to end."""
CLOSE_S = 2.0
"""For files to be closed by the thread that leaves."""
LAST_RESORT_S = 1.0
"""More than both: then SIGALRM ends the process. All three together are less than 10 s."""
PUBLISH = "publish"
MIDDLEWARE = ("rclpy",)
"""Packages whose calls wait for others."""


class HangWatch:
    """Of the process of one node; made, beaten and ended by the thread that runs the executor.

    watch = HangWatch(); node = ...; watch.is_made("push_1", close_files)
    while ...: spin(); watch.beat()
    watch.ends("draining"); ...; watch.ends("destroying the node"); ...
    """

    of_process: ClassVar[HangWatch | None] = None
    """None: nobody watches."""

    def __init__(self) -> None:
        HangWatch.of_process = self
        self._name = Path(sys.argv[0]).stem
        """Until there is a node."""
        self._close_files: Callable[[], object] = lambda: None
        self._watches_interpreter, self._dumps = True, False
        self._thread_id = threading.get_ident()
        self._beat_s = time.monotonic()
        self._step, self._limit_s = "", END_STEP_S
        """Of the end; empty: the node is at work."""
        self._call: FrameType | None = None
        """Of the middleware, that the executor's thread was in at the last look; kept, so that the next one is another object."""
        self._call_since_s = 0.0
        self._said_s: float | None = None
        """When the hang was named; None: the executor is there."""
        self._asked, asks = socket.socketpair()
        self._asks = asks
        for end in (self._asked, asks):
            end.setblocking(False)
        signal.set_wakeup_fd(asks.fileno(), warn_on_full_buffer=False)  # a hanging thread runs no handler of Python
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a child's signals are none of ours
        last_resort.dump_at_alarm()
        if sys.platform == "linux":
            last_resort.alarm_when_readable(self._asked)
        self._last_resort = last_resort.LastResort()
        threading.Thread(target=self._run, name="hang watch", daemon=True).start()

    def is_made(self, name: str, close_files: Callable[[], object], *, watches_interpreter: bool) -> None:
        """The node of this name is there.

        close_files: asks nothing of the middleware. watches_interpreter: False: the node does so itself.
        """
        self._name, self._close_files, self._watches_interpreter = name, close_files, watches_interpreter
        self.beat()

    def beat(self) -> None:
        """The executor's thread is back."""
        self._beat_s = time.monotonic()

    def ends(self, step: str, limit_s: float = END_STEP_S) -> None:
        """The process ends, and now does `step`, in words for the log. limit_s: for this step, or until the next `beat`."""
        if not self._step:
            self._begin_end()
        self._step, self._limit_s = step, limit_s
        self.beat()
        self._last_resort.put_off()

    def _begin_end(self) -> None:
        """Let further signals of the same kind set no alarm: from now on `LastResort` does."""
        fcntl.fcntl(self._asked, fcntl.F_SETFL, fcntl.fcntl(self._asked, fcntl.F_GETFL) & ~os.O_ASYNC)

    # --- the thread ---

    def _run(self) -> None:
        looked_s = time.monotonic()
        while True:
            self._watch_interpreter()
            self._hear_signals()
            now_s = time.monotonic()
            if now_s - looked_s > 4.0 * LOOK_PERIOD_S:  # the whole process stood still, as one that was stopped does
                self._beat_s = now_s
                self._report_pause(now_s - looked_s)
            looked_s = now_s
            if self._step:
                self._last_resort.put_off()
            self._look(now_s)

    def _watch_interpreter(self) -> None:
        """This thread alone begins and cancels a dump, so that none is begun after it was cancelled."""
        watches = self._watches_interpreter and not self._step
        with contextlib.suppress(ValueError, OSError, RuntimeError):  # a process without a standard error
            if watches:
                faulthandler.dump_traceback_later(FROZEN_AFTER_S, repeat=True)
            elif self._dumps:
                faulthandler.cancel_dump_traceback_later()
        self._dumps = watches

    def _hear_signals(self) -> None:
        """For a while."""
        poll = select.poll()  # takes any number of a file, unlike select(2)
        poll.register(self._asked, select.POLLIN)
        numbers = self._asked.recv(64) if poll.poll(1e3 * LOOK_PERIOD_S) else b""
        if not self._step and any(number in numbers for number in ENDING_SIGNALS):
            self.ends("at work, when it was asked to end")
        elif numbers and not self._step:
            signal.setitimer(signal.ITIMER_REAL, 0.0)  # another signal, with which nothing ends

    def _look(self, now_s: float) -> None:
        call = self._middleware_call() if now_s - self._beat_s > LOOK_PERIOD_S else None
        if call is not self._call:
            self._call, self._call_since_s = call, now_s
        since_s = now_s - self._call_since_s
        if self._step:  # one call of the middleware is never to take long, in whatever step
            if now_s - self._beat_s > self._limit_s or (call is not None and since_s > END_STEP_S):
                self._leave(now_s - self._beat_s)
        elif call is not None and since_s > HANGS_AFTER_S:
            self._say_hang(call, since_s, now_s)
        elif call is None and self._said_s is not None:
            self._said_s = None
            self._say("the middleware came back, and the node goes on")

    def _report_pause(self, seconds: float) -> None:
        """faulthandler's timer goes on while a process is stopped, so its stacks may have been written for that alone."""
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
        """The call of the middleware that the executor's thread is in; None: it is in none."""
        frame = innermost = sys._current_frames().get(self._thread_id)
        while frame is not None and frame.f_code.co_name != PUBLISH:
            frame = frame.f_back
        return frame or (innermost if innermost is not None and _is_middleware(innermost) else None)

    def _say(self, words: str, *, level: str = "ERROR", stack: bool = False) -> None:
        """To the standard error alone: the logger publishes, too."""
        lines = [f"[{level}] [{time.time():.9f}] [{self._name}]: {words}"]
        if stack and (frame := sys._current_frames().get(self._thread_id)) is not None:
            lines += ["".join(traceback.format_stack(frame)).rstrip()]
        with contextlib.suppress(OSError):
            os.write(2, ("\n".join(lines) + "\n").encode(errors="replace"))


def progress() -> None:
    """Say, on the thread that runs the executor, that a step of the end gets on, which has parts that each may take a while."""
    if HangWatch.of_process is not None:
        HangWatch.of_process.beat()


def _is_middleware(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in MIDDLEWARE


def _name(call: FrameType) -> str:
    name = call.f_code.co_name
    return f"publish of {_topic(call)}" if name == PUBLISH else f"{name} of {Path(call.f_code.co_filename).name}"


def _topic(frame: FrameType) -> str:
    """Of the publisher whose call this is."""
    publisher = frame.f_locals.get("self")
    try:
        return str(getattr(publisher, "topic_name", None) or type(publisher).__name__)
    except Exception:  # of a publisher that is destroyed
        return "a publisher"
