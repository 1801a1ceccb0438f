"""Client of the process that plans for the scheduler node.

A plan for 256 GPUs takes half a minute of Python and solvers. In a process of its own it neither delays the executor nor outlives
its use.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from ros2_rfm_serving.errors import PlannerError, ProfileError, RfmError, ScheduleError
from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.plan_worker import Job, Made, Refused, main
from ros2_rfm_serving.scheduler import (
    AdmissionOffers,
    PlanJob,
    PlanResult,
    ScheduleManager,
    TelemetryController,
    plan,
    rebuilt,
    resumed,
    without_automatic,
)
from ros2_rfm_serving.simulation.trial import virtual_time_trial
from ros2_rfm_serving.types import Schedule

LONGEST_PLAN_S = 900.0
"""Thirty times what 256 GPUs take on an idle core; a process that needs longer is stopped or waits for something that never comes.
"""
LONGEST_STILL_S = 60.0
"""Maximum time without CPU use of the process, which is then stopped or swapped out; robots may be waiting for its plan."""
CODES: dict[int, type[RfmError]] = {error.code: error for error in (ScheduleError, ProfileError)}


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection

    @staticmethod
    def started() -> _Worker:
        ours, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", f"from {main.__module__} import main; main()", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C is for the node
            )
        return _Worker(process, ours)

    def worked(self) -> list[str]:
        """Return the CPU ticks of the process in user and kernel mode; empty: unknown."""
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[11:13]
        except OSError:
            return []

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Planner:
    """Planner by the profiles of a folder, one plan at a time. It lives on the executor's thread and never blocks it."""

    def __init__(self, profiles: Path, log: Any) -> None:
        """Load the profiles. Raises: `RfmError` for profiles that cannot be used."""
        self._profile, self._catalogue, self._log = load_profiles(profiles), Catalogue.load(profiles / "models.yaml"), log
        self._worker: _Worker | None = None
        self._running: PlanJob | None = None
        self._began_s = 0.0
        self._worked: list[str] = []
        self._worked_s = 0.0
        """CPU ticks of the process, and the time at which they last rose."""
        self._dispatch_reason = ""
        """Reason for the dispatch policy with which servers were started; empty: it was declared."""
        self._made: queue.SimpleQueue[tuple[PlanJob, PlanResult | AdmissionOffers | RfmError]] = queue.SimpleQueue()

    def decided(self, factory: Factory) -> Factory:
        """Return the factory with `auto` replaced by a dispatch policy, as when its servers were started. Raises: `RfmError`."""
        factory, why = without_automatic(factory, self._profile, self._catalogue)
        self._dispatch_reason = why
        if why:
            self._log.info(why)
        return factory

    def values(self, factory: Factory) -> dict[str, str]:
        """Return what diagnostics show of the dispatch policy of the factory's servers: its name, and why it is this one."""
        names = ", ".join(sorted(set(factory.dispatch.values())))
        return {"dispatch": names, "dispatch_reason": self._dispatch_reason or "the descriptor declares it"}

    def lookout(self, fleet: ScheduleManager) -> TelemetryController:
        """Return the monitor of the fleet, with the same profiles."""
        return TelemetryController(fleet, self._profile, self._catalogue)

    def at_once(self, order: PlanJob, found: Schedule | None) -> PlanResult:
        """Plan synchronously, before anything runs. found: active schedule of a predecessor. Raises: `RfmError`."""
        if found is None:
            return plan(order, self._profile, self._catalogue, trial=virtual_time_trial(self._catalogue, self._profile))
        made, words = resumed(order, found, self._profile, self._catalogue)
        self._log.info(words)
        return made

    def look(self, fleet: ScheduleManager) -> None:
        """Hand over a finished plan, and begin the one that is wanted; a plan that is no longer wanted delays no needed one."""
        while not self._made.empty():
            order, made = self._made.get()
            if order is self._running:
                self._running = None
                if isinstance(made, PlannerError):
                    self._log.error(str(made))
                    self.end()
                fleet.planned(order, made)
        if self._running is not None and (why := self._stuck()):
            self._made.put((self._running, PlannerError(f"{why}: ask again")))
            return
        wanted = fleet.wanted
        if wanted is None or wanted is self._running:
            return
        if self._running is not None and wanted.needed:
            self.end()
        if self._running is None:
            self._begin(wanted)

    def end(self) -> None:
        self._running = None
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    # --- parts ---

    def _stuck(self) -> str:
        """Return why the plan in progress should not be waited for; empty: it will come."""
        now_s, worked = clock(), self._worker.worked() if self._worker else []
        if worked != self._worked or not worked:
            self._worked, self._worked_s = worked, now_s
        if now_s - self._worked_s > LONGEST_STILL_S:
            return f"the planner's process has done nothing for {LONGEST_STILL_S:g} s"
        return f"no plan after {LONGEST_PLAN_S:g} s" if now_s - self._began_s > LONGEST_PLAN_S else ""

    def _begin(self, order: PlanJob) -> None:
        self._running, self._began_s = order, clock()
        self._worked_s = self._began_s
        try:
            self._worker = self._worker or _Worker.started()
        except OSError as error:
            self._made.put((order, PlannerError(f"no process plans: {error}")))
            return
        threading.Thread(target=self._converse, args=(self._worker, order), name="planner", daemon=True).start()

    def _converse(self, worker: _Worker, order: PlanJob) -> None:
        """Send an order and receive its answer; runs on a thread of its own."""
        try:
            worker.connection.send(Job(order, self._profile, self._catalogue))
            answer = worker.connection.recv()
            made = answer if isinstance(answer, AdmissionOffers) else self._made_of(order, answer)
        except (EOFError, OSError):
            made = PlannerError(f"the planner's process ended ({worker.process.poll()}): ask again")
        except Exception as error:
            made = PlannerError(f"the planner failed: {error!r}")
        self._made.put((order, made))

    def _made_of(self, order: PlanJob, made: Made | Refused) -> PlanResult | RfmError:
        if isinstance(made, Refused):
            return self._refused(made)
        fleet = rebuilt(order.factory, made.schedule, order.robots, self._profile, self._catalogue, order.seen, holds=made.holds)
        return PlanResult(
            fleet, order.factory, order.previous, order.policy, made.work, order.seen, made.complete, order.effort, made.doing
        )

    def _refused(self, answer: Refused) -> RfmError:
        known = CODES.get(answer.code)
        return known(answer.problem) if known else PlannerError(f"the planner failed: {answer.problem}")
