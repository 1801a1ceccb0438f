"""Subscriptions to server and robot statuses for the scheduler's monitor, and its findings in `/diagnostics`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.factory.cluster import StragglerConfig
from ros2_rfm_serving.ros.attendance import LEAF as ROBOT_LEAF
from ros2_rfm_serving.ros.followers import HARDWARE
from ros2_rfm_serving.ros.node.diagnostics import key_values
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.said import STALE, UNPROVEN, Hearer
from ros2_rfm_serving.ros.node.scheduled import Processes
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import bounded, qos
from ros2_rfm_serving.scheduler import ScheduleManager, TelemetryController
from ros2_rfm_serving.scheduler.estimation import (
    CONFIDENCE,
    LOOK_PERIOD_S,
    SAMPLE,
    ComponentTotals,
    RobotStatusSample,
    ServerStatusSample,
    SloCounts,
)
from ros2_rfm_serving.scheduler.name_lists import shortened
from ros2_rfm_serving.types import SYSTEM1, RobotState, ServerState, TaskPhase

SERVER_LEAF = "status"
NAMED = 3
"""Maximum number of broken promises, and of robots, that are described in full."""
FAR_SAID_S = 60.0
"""Minimum time between two lines of the log that name robots with a bad network."""
STAYS_S = 10.0
"""Time that a robot may be at another server than its own before it is reported: a session takes time to open."""


class Watching:
    """Monitor of all servers of the descriptor and of a sample of each task's robots. It polls twice a second."""

    def __init__(
        self,
        node: Node,
        names: qos.Names,
        fleet: ScheduleManager,
        lookout: TelemetryController,
        identity: int,
        heard: Callable[[str, Any], object],
        processes: Callable[[list[int]], object],
    ) -> None:
        """Start polling. heard: called with a server and its status. processes: called with the processes of all servers, where
        there are certificates."""
        self._node, self._names, self._fleet, self._lookout, self._identity = node, names, fleet, lookout, identity
        self._hearer, self._processes = Hearer.of_process(), Processes()
        self._heard, self._on_processes = heard, processes
        self._servers: dict[str, Any] = {}
        self._robots: dict[str, Any] = {}
        """Name -> the subscription to its status."""
        self._homes: dict[str, str] = {}
        """Robot of the sample -> server of its System 1 by the schedule."""
        self._astray_s: dict[str, tuple[str, float]] = {}
        """Robot -> other server at which it reports to be, and since when."""
        self._told_far: set[str] = set()
        self._listened: object = None
        self._refused = self._unproven = self._untimely = 0
        """Counts of statuses that cannot be read or name another process than their topic; that are unverified; that are older than
        this scheduler."""
        every(node, LOOK_PERIOD_S, self._look)

    def diagnosis(self) -> DiagnosticStatus:
        """Return the diagnostics of `scheduler: servers`.
        The level is WARN while a server is lost, or while a promise of the schedule does not hold by measurement."""
        lookout, watch = self._lookout, self._lookout.watch
        level, message = DiagnosticStatus.OK, f"{len(self._servers)} servers are as planned"
        if watch.health.is_deaf:
            level, message = DiagnosticStatus.WARN, "no server is heard: what the schedule says of them may not be so"
        elif lookout.broken:
            level, message = DiagnosticStatus.WARN, "; ".join(lookout.broken[:NAMED])
        elif lost := watch.health.lost:
            level, message = DiagnosticStatus.WARN, f"planned without {', '.join(lost)}"
        elif found := [*(f"{name} {pace:.2f}" for name, pace in self._paces()), *self._late()]:
            message = f"planned with what was measured: {', '.join(found)}"
        elif far := self._far():
            message = f"worse than planned is the network of {far}"
        values = {
            "lost": ", ".join(watch.health.lost),
            "has again whom it had": ", ".join(sorted(self._fleet.fleet.restored)),
            **{f"{server} is used again in, s": round(s, 1) for server, s in watch.health.on_probation.items()},
            **dict(self._measured()),
            **dict(self._straggling()),
            **dict(self._needs()),
            "robots that are not where the schedule has them": self._astray(clock()),
            "robots whose network is worse than planned": self._far(),
            "figures refused": watch.insane + watch.drift.implausible + watch.factors.implausible,
            "statuses refused": self._refused,
            "statuses unproven": self._unproven,
            "statuses of servers that do not hear this scheduler": self._untimely,
            "statuses of servers that nobody declared": watch.health.unknown,
            "statuses of robots that nobody serves": watch.strangers,
        }
        return DiagnosticStatus(
            level=level, name="scheduler: servers", message=message, hardware_id=HARDWARE, values=key_values(values)
        )

    def _paces(self) -> Iterator[tuple[str, float]]:
        seen = self._lookout.watch.seen
        yield from seen.paces.items()
        yield from ((f"{model} on {gpu_type}", pace) for (model, gpu_type), pace in seen.models.items())

    def _measured(self) -> Iterator[tuple[str, str]]:
        """Yield per server its measured pace, the expected one and the confidence interval."""
        for server, pace in self._lookout.watch.told().items():
            low, mean, high = pace.interval
            told = f"{mean:.3f}, expected {pace.used:.2f} ({100 * CONFIDENCE:.0f} % sure: {low:.3f} to {high:.3f})"
            yield f"{server} takes times its profile", told

    def _astray(self, now_s: float) -> str:
        """Return robots of the sample that are not at their server: they follow no schedule, or that server is full or lost."""
        those = [f"{robot} ({server})" for robot, (server, since_s) in self._astray_s.items() if now_s - since_s > STAYS_S]
        return shortened(those, NAMED)

    def _far(self) -> str:
        """Return robots of the sample whose network is worse than planned."""
        far = self._lookout.watch.far
        return shortened([f"{f.robot} (at least {1e3 * f.way_s:.0f} ms, planned {1e3 * f.planned_s:.0f})" for f in far], NAMED)

    def _tell_far(self) -> None:
        """Log when a robot is added to those with a bad network."""
        far = {far.robot for far in self._lookout.watch.far}
        if not far <= self._told_far:
            log = self._node.get_logger()
            log.warning(f"the network of these is worse than planned: {self._far()}", throttle_duration_sec=FAR_SAID_S)
        self._told_far = far

    def _late(self) -> Iterator[str]:
        yield from (f"{server} {_late(some)}" for server, some in self._lookout.watch.seen.stragglers.items())

    def _straggling(self) -> Iterator[tuple[str, str]]:
        """Yield per server its measured outlier service times, the expected ones and the number of events."""
        planned, declared = self._lookout.watch.seen.stragglers, self._fleet.factory.planning.stragglers
        for server, (some, events) in self._lookout.watch.straggling.found.items():
            expected = planned.get(server, declared)
            told = f"{_late(some)} ({events} events), expected: {_late(expected) if expected else 'none'}"
            yield f"{server} services that take longer", told

    def _needs(self) -> Iterator[tuple[str, str]]:
        """Yield the measured requirements of robots that differ from the declared ones."""
        seen = self._lookout.watch.seen
        for task, travel in seen.travels.items():
            yield f"{task} network round trip, ms", f"{1e3 * travel.mean_s:.1f}, at the tail {1e3 * travel.tail_s:.1f}"
        for task, cycle_s in seen.cycles_s.items():
            yield f"{task} executed of a chunk, ms", f"{1e3 * cycle_s:.0f}, declared {self._declared_ms(task):.0f}"
        for task, calls in seen.calls.items():
            declared = self._fleet.factory.tasks[task].calls_per_action
            for component, ratio in calls.items():
                yield f"{task} calls of {component} per action", f"{ratio:.3g}, declared {declared(component):.3g}"

    def _declared_ms(self, task: str) -> float:
        return 1e3 * self._fleet.factory.tasks[task].cycle_period_s

    def _look(self) -> None:
        if self._listened is not self._fleet.fleet:
            self._listened = self._fleet.fleet
            self._listen(self._servers, set(self._fleet.factory.servers), SERVER_LEAF)
            self._processes.keep(self._fleet.factory.servers)
            self._listen(self._robots, sample := self._sample(), ROBOT_LEAF)
            routes = self._fleet.fleet.schedule.routes
            self._homes = {r.robot: r.server for r in routes if r.component == SYSTEM1 and r.robot in sample}
            self._astray_s = {robot: at for robot, at in self._astray_s.items() if self._homes.get(robot, at[0]) != at[0]}
        self._lookout.look(clock())
        self._tell_far()

    def _sample(self) -> set[str]:
        """Return the first served robots of each task."""
        sample: dict[str, list[str]] = {}
        for robot in self._fleet.fleet.robots:
            sample.setdefault(robot.task, []).append(robot.name)
        return {robot for robots in sample.values() for robot in robots[:SAMPLE]}

    def _listen(self, heard: dict[str, Any], wanted: set[str], leaf: str) -> None:
        for name in heard.keys() - wanted:
            self._node.destroy_subscription(heard.pop(name))
        for name in wanted - heard.keys():
            if leaf == SERVER_LEAF:
                prove = functools.partial(self._hearer.check_own, name)
                of = (msg.ServerStatus, self._names.server(name, leaf), functools.partial(self._on_server, name), qos.SERVER_STATUS)
            else:
                prove = functools.partial(self._hearer.check_status, name, self._identity)
                of = (msg.RobotStatus, self._names.robot(name, leaf), functools.partial(self._on_robot, name), qos.ROBOT_STATUS)
            heard[name] = bounded.hear(self._node, *of, self._refuse, prove=prove)

    def _refuse(self, error: BadMessageError | None = None) -> None:
        if error is not None and error.kind in (UNPROVEN, STALE):
            self._unproven += 1
        else:
            self._refused += 1

    def _on_server(self, server: str, status: Any) -> None:
        if status.header.frame_id != server or status.state not in ServerState._value2member_map_:
            self._refuse()
        elif not self._hearer.is_of_now(status, self._identity) or self._processes.is_gone(server, status.process):
            self._untimely += 1
        else:
            self._lookout.hear_server(server_word(server, status, self._identity), clock())
            self._heard(server, status)
            if self._hearer.demands and self._processes.hear(server, status.process):
                self._on_processes(self._processes.newest)

    def _on_robot(self, robot: str, status: Any) -> None:
        if status.header.frame_id != robot:
            self._refuse()
        elif self._hearer.is_of_now(status, self._identity) and (task := self._fleet.fleet.task_of(robot)):
            self._lookout.hear_robot(robot_word(robot, task, status), clock())
            self._find(robot, status.server, clock())

    def _find(self, robot: str, server: str, now_s: float) -> None:
        """Record at which server a robot reports to be; empty: at none."""
        if server in ("", self._homes.get(robot, "")):
            self._astray_s.pop(robot, None)
        elif robot in self._homes and self._astray_s.get(robot, ("",))[0] != server:
            self._astray_s[robot] = server, now_s


def _late(some: StragglerConfig) -> str:
    return f"{100 * some.share:.2g} % x {some.factor:g}"


def server_word(server: str, status: Any, scheduler: int) -> ServerStatusSample:
    """Return the monitor's sample of a server status. scheduler: identity of the receiving scheduler."""
    told = {histogram.name: histogram for histogram in status.histograms}
    inference, wait = told.get("inference_s"), told.get("queue_wait_s")
    return ServerStatusSample(
        server=server,
        state=ServerState(status.state),
        model=status.model,
        batch_size=status.batch_size,
        mean_batch_size=status.mean_batch_size,
        latency_p99_s=status.latency_p99_s,
        replies=sum(int(count) for count in inference.counts) if inference else 0,
        inference_s=inference.sum if inference else 0.0,
        queue_wait_s=wait.sum if wait else 0.0,
        bounds_s=tuple(inference.bounds) if inference else (),
        counts=tuple(int(count) for count in inference.counts) if inference else (),
        follows=status.schedule_epoch if status.scheduler == scheduler else 0,
        follows_another=status.scheduler not in (0, scheduler),
    )


def robot_word(robot: str, task: str, status: Any) -> RobotStatusSample:
    """Return the monitor's sample of a robot status. task: class for which the robot is served."""
    trips = {h.component: h for h in status.histograms if h.name == "round_trip_s"}
    horizon = next((h for h in status.histograms if h.name == "horizon_s"), None)
    return RobotStatusSample(
        robot=robot,
        task=task,
        server=status.server,
        streams=status.state == RobotState.STREAMING and status.phase == TaskPhase.EXECUTING,
        asked={component: ComponentTotals(sum(int(count) for count in h.counts), h.sum) for component, h in trips.items()},
        horizons=sum(int(count) for count in horizon.counts) if horizon else 0,
        horizons_s=horizon.sum if horizon else 0.0,
        round_trip_p99_s=status.round_trip_p99_s,
        kept={part.component: SloCounts(part.in_time, part.late) for part in status.components},
    )
