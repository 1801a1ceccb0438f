"""Watchdog that ends a process in which something does not return: neither an engine nor a decoder can be asked to stop.

It checks for progress, not whether a thread is alive. It polls from a thread of its own and takes no lock, because the executor may
be what hangs. Another process watches over the interpreter. Time in which the whole process did not run does not count.
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
"""Time between detection and the end of the process, for the status that reports it."""
EXECUTOR_S = 5.0
"""Minimum delay of the executor that counts as a hang, even with a smaller `hung_after_s` for the engine."""
FROZEN_FACTOR = 3.0
"""Factor of the limit after which, without a poll, the interpreter itself counts as stuck."""
Stalled = Callable[[float], float]
"""Function now -> time for which there was work without progress, s. It is called from any thread, without a lock."""


class Watchdog:
    """Watchdog of a server. `hung` names what hangs; empty: everything progresses. `says_so` is called on the watchdog's thread."""

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
        """Watch these from now on. limit_s: 0 disables the limit."""
        self._since_s = self._beat_s = clock()
        self._limit_s, self._watched = limit_s, watched
        if self._ends_process:  # at once, because the interpreter may be stuck before the first poll
            self._watch_interpreter()

    @property
    def watches(self) -> bool:
        return bool(self._watched)

    def rest(self) -> None:
        """Suspend the watch: the present work may take any time."""
        self._watched = {}
        if self._ends_process:
            self._watch_interpreter()

    def beat(self) -> None:
        """Record that the executor is responsive."""
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
        """Return what has not progressed for longer than the limit; empty: nothing."""
        for what, stalled_s in watched.items():
            if self.ran_s(min(stalled_s(now_s), now_s - self._since_s), now_s) > limit_s:
                return what
        return "the executor" if self.ran_s(now_s - self._beat_s, now_s) > max(limit_s, EXECUTOR_S) else ""

    def _end(self) -> None:
        time.sleep(SAYS_SO_S)
        faulthandler.dump_traceback(file=sys.stderr)
        os._exit(EXIT_HUNG)
