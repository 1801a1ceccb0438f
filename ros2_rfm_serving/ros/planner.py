"""Looks for room and plans whole factories for the scheduler node in a process of its own: half a minute of Python and of solvers,
at 256 GPUs, that neither delays the executor nor outlives its use."""

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
from ros2_rfm_serving.scheduler import InForce, Lookout, Planned, PlanOrder, Rooms, plan, rebuilt, resumed, without_automatic
from ros2_rfm_serving.simulation.trial import virtual_time_trial
from ros2_rfm_serving.types import Schedule

LONGEST_PLAN_S = 900.0
"""Thirty times what 256 GPUs take on a core of their own: a process that needs longer is stopped, or waits for what never comes."""
LONGEST_STILL_S = 60.0
"""Without any work of its own on a processor: stopped, or its memory is on a disk. Robots may wait for what it plans."""
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
        """Ticks of a processor, of its own and of the kernel for it; empty: that cannot be told."""
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[11:13]
        except OSError:
            return []

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Planner:
    """By the profiles of a folder, one plan at a time. Lives on the executor's thread, which never waits for it."""

    def __init__(self, profiles: Path, log: Any) -> None:
        """Raises: `RfmError` for profiles that cannot be used."""
        self._profile, self._catalogue, self._log = load_profiles(profiles), Catalogue.load(profiles / "models.yaml"), log
        self._worker: _Worker | None = None
        self._running: PlanOrder | None = None
        self._began_s = 0.0
        self._worked: list[str] = []
        self._worked_s = 0.0
        """What the process has done, and when that was more than before."""
        self._dispatch_reason = ""
        """Why servers were started with the dispatch policy that they have; empty: it was declared."""
        self._made: queue.SimpleQueue[tuple[PlanOrder, Planned | Rooms | RfmError]] = queue.SimpleQueue()

    def decided(self, factory: Factory) -> Factory:
        """With the dispatch policy that `auto` is, as servers were started with it. Raises: `RfmError`."""
        factory, why = without_automatic(factory, self._profile, self._catalogue)
        self._dispatch_reason = why
        if why:
            self._log.info(why)
        return factory

    def values(self, factory: Factory) -> dict[str, str]:
        """Return what diagnostics show of the dispatch policy of the factory's servers: its name, and why it is this one."""
        names = ", ".join(sorted(set(factory.dispatch.values())))
        return {"dispatch": names, "dispatch_reason": self._dispatch_reason or "the descriptor declares it"}

    def lookout(self, fleet: InForce) -> Lookout:
        """By the same profiles."""
        return Lookout(fleet, self._profile, self._catalogue)

    def at_once(self, order: PlanOrder, found: Schedule | None) -> Planned:
        """Here, before anything runs. found: in force, of a predecessor. Raises: `RfmError`."""
        if found is None:
            return plan(order, self._profile, self._catalogue, trial=virtual_time_trial(self._catalogue, self._profile))
        made, words = resumed(order, found, self._profile, self._catalogue)
        self._log.info(words)
        return made

    def look(self, fleet: InForce) -> None:
        """Hands over what was planned, and begins what is wanted. Who waits does not wait for what is no longer wanted."""
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
        """Why nobody should wait for what is being planned; empty: it will come."""
        now_s, worked = clock(), self._worker.worked() if self._worker else []
        if worked != self._worked or not worked:
            self._worked, self._worked_s = worked, now_s
        if now_s - self._worked_s > LONGEST_STILL_S:
            return f"the planner's process has done nothing for {LONGEST_STILL_S:g} s"
        return f"no plan after {LONGEST_PLAN_S:g} s" if now_s - self._began_s > LONGEST_PLAN_S else ""

    def _begin(self, order: PlanOrder) -> None:
        self._running, self._began_s = order, clock()
        self._worked_s = self._began_s
        try:
            self._worker = self._worker or _Worker.started()
        except OSError as error:
            self._made.put((order, PlannerError(f"no process plans: {error}")))
            return
        threading.Thread(target=self._converse, args=(self._worker, order), name="planner", daemon=True).start()

    def _converse(self, worker: _Worker, order: PlanOrder) -> None:
        """On a thread of its own."""
        try:
            worker.connection.send(Job(order, self._profile, self._catalogue))
            answer = worker.connection.recv()
            made = answer if isinstance(answer, Rooms) else self._made_of(order, answer)
        except (EOFError, OSError):
            made = PlannerError(f"the planner's process ended ({worker.process.poll()}): ask again")
        except Exception as error:
            made = PlannerError(f"the planner failed: {error!r}")
        self._made.put((order, made))

    def _made_of(self, order: PlanOrder, made: Made | Refused) -> Planned | RfmError:
        if isinstance(made, Refused):
            return self._refused(made)
        fleet = rebuilt(order.factory, made.schedule, order.robots, self._profile, self._catalogue, order.seen, holds=made.holds)
        return Planned(
            fleet, order.factory, order.previous, order.policy, made.work, order.seen, made.complete, order.effort, made.doing
        )

    def _refused(self, answer: Refused) -> RfmError:
        known = CODES.get(answer.code)
        return known(answer.problem) if known else PlannerError(f"the planner failed: {answer.problem}")
