"""Ends a process in which something does not come back: neither an engine nor a decoder can be asked to stop.

What counts is progress, not that a thread is alive. It looks from a thread of its own and takes no lock: the executor may be
what does not come back. Another process watches over the interpreter. Time in which the whole process did not run does not count.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping

from ros2_rfm_serving.ros.node.running_time import LOOK_PERIOD_S, RunningTime
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.server.interpreter_watch import InterpreterWatch

EXIT_HUNG = 70
SAYS_SO_S = 0.5
"""Between finding it and the end of the process: for the status that says so."""
EXECUTOR_S = 5.0
"""The executor may be late by so much, however impatient `hung_after_s` is with the engine."""
FROZEN_FACTOR = 3.0
"""Times the limit: after this without a look the interpreter itself is stuck."""
Stalled = Callable[[float], float]
"""Now -> for how long it has had something to do and nothing moved, s. From any thread, without a lock."""


class Watchdog:
    """`hung` names what does not come back; empty: everything moves. `says_so` is called on the watchdog's thread."""

    def __init__(self, says_so: Callable[[str], None], *, ends_process: bool) -> None:
        self.hung = ""
        self._says_so, self._ends_process = says_so, ends_process
        self._limit_s = 0.0
        self._watched: Mapping[str, Stalled] = {}
        self._since_s = self._beat_s = clock()
        self._ran = RunningTime(self._since_s)
        self._interpreter = InterpreterWatch()
        self._ending = threading.Event()
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def watch(self, limit_s: float, watched: Mapping[str, Stalled]) -> None:
        """From now on. 0: nothing is too long."""
        self._since_s = self._beat_s = clock()
        self._limit_s, self._watched = limit_s, watched
        if self._ends_process:  # now: the interpreter may be stuck before the first look
            self._watch_interpreter()

    @property
    def watches(self) -> bool:
        return bool(self._watched)

    def rest(self) -> None:
        """What happens now takes what it takes."""
        self._watched = {}
        if self._ends_process:
            self._watch_interpreter()

    def beat(self) -> None:
        """The executor is there."""
        self._beat_s = clock()

    def ran_s(self, seconds: float, now_s: float) -> float:
        """Return for how many of the last seconds before now the process ran."""
        return self._ran.passed_s(now_s - seconds, now_s)

    def stop(self) -> None:
        self._ending.set()
        self.rest()
        self._interpreter.stop()

    def _run(self) -> None:
        while not self._ending.wait(LOOK_PERIOD_S):
            now_s, limit_s, watched = clock(), self._limit_s, self._watched
            self._ran.look(now_s)
            found = self._find(limit_s, watched, now_s) if limit_s and watched else ""
            self.hung, before = found, self.hung
            if self._ends_process:
                self._watch_interpreter()
            if found and not before:
                self._says_so(found)
                if self._ends_process:
                    self._end()

    def _watch_interpreter(self) -> None:
        watches = bool(self._watched and self._limit_s)
        self._interpreter.beat(FROZEN_FACTOR * self._limit_s + SAYS_SO_S if watches else 0.0)

    def _find(self, limit_s: float, watched: Mapping[str, Stalled], now_s: float) -> str:
        """What has not moved for longer than the limit."""
        for what, stalled_s in watched.items():
            if self.ran_s(min(stalled_s(now_s), now_s - self._since_s), now_s) > limit_s:
                return what
        return "the executor" if self.ran_s(now_s - self._beat_s, now_s) > max(limit_s, EXECUTOR_S) else ""

    def _end(self) -> None:
        time.sleep(SAYS_SO_S)
        faulthandler.dump_traceback(file=sys.stderr)
        os._exit(EXIT_HUNG)
