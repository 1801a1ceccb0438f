"""Admission of a robot on the servers as they are (ROSA §3.4.4): every promise holds with it, or it is refused with the reason.

Promises are: every SLO under the full load of the robot; the standby of a server carries both loads; the floors of the classes that
run; and for the robot itself its floor and a fair share of the rate that the plan gave to its class.
Curves rank the servers by free capacity at once. Where the queue of a server's robots can be simulated, it is evaluated next, as it
was for the plan: on every server to check its SLOs with the robot, and as the only criterion where the plan exceeds the curve.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.scheduler.link_load import LinkBudget
from ros2_rfm_serving.scheduler.prediction.closed_loop import BUSIEST
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.problem import Demand, TaskClass
from ros2_rfm_serving.scheduler.queues import Queues, RobotKind
from ros2_rfm_serving.scheduler.server_load import ServerLoad
from ros2_rfm_serving.scheduler.standby_compatibility import has_rows, stands_in

FAIR_SHARE = 0.5
"""Fraction of the class's planned action rate that an admitted robot gets at least; for less, the factory is planned anew."""
STANDSTILL = 0.01
"""Fraction of the action rate without latency below which no robot is admitted, also where the plan gives its class nothing."""
BISECTIONS = 40
LOOKS, CLOSER = 6, 3
"""Queue evaluations per admission, 10 to 20 ms each while all requests wait; and those between a kept and a missed rate."""
ROUNDING = 1e-9

Seats = Mapping[int, ServerLoad]
"""Index of a demand -> its server."""
Extra = Mapping[str, float]
"""Server -> requests/s of the new robot."""


def owed_hz(task: TaskClass, planned_hz: float) -> float:
    """Return the action rate that each robot of a task is owed by its plan."""
    return max(task.floor_hz, FAIR_SHARE * planned_hz)


class AdmissionDecision:
    """Admission of one robot of a task."""

    def __init__(
        self,
        task: TaskClass,
        classes: Sequence[TaskClass],
        hosts: Mapping[str, ServerLoad],
        curves: Curves,
        planned_hz: float,
        pledge: LinkBudget | None = None,
        beyond: Collection[str] = (),
    ) -> None:
        """planned_hz: action rate of the class in the plan; 0: the plan has no robot of it. pledge: link budget; None: no links.
        beyond: servers that are loaded beyond their curves, because the queue of their robots keeps every SLO.
        """
        self._pledge, self._beyond = pledge, beyond
        self._task, self._classes, self._hosts, self._curves = task, classes, hosts, curves
        self._demands = [demand for one in classes for demand in one.demands]
        self.looked = 0
        """Queue evaluations so far."""
        self._covered: dict[str, list[ServerLoad]] = defaultdict(list)
        """Server -> servers that it is the standby of."""
        self._used: dict[int, list[ServerLoad]] = defaultdict(list)
        """Index of a demand -> servers of the robots with that demand."""
        for host in hosts.values():
            if host.sessions:
                self._covered[host.standby].append(host)
            for index in host.demands:
                self._used[index].append(host)
        self.least_hz = max(owed_hz(task, planned_hz), STANDSTILL * task.max_rate_hz)

    def best(self, queues: Queues, looks: int = LOOKS) -> tuple[dict[int, ServerLoad], float, float]:
        """Return (seats, cap, prediction) with which queues keep every SLO too, after at most `looks` queue evaluations. Where the
        server with the most free capacity misses an SLO, one with other robots is tried. Raises: `ScheduleError`.
        """
        refused: ScheduleError | None = None
        avoided: set[Hashable] = set()
        while refused is None or looks > 0:
            try:
                seats = self.seats(avoided)
            except ScheduleError as error:
                raise refused or ScheduleError(f"{error}; {self._offered(queues, looks)}") from None
            try:
                most_hz, _ = self.rates_hz(seats)
            except ScheduleError as error:
                raise refused or error from None
            judged = {host.placement.server for host in seats.values() if self._is_judged(seats, host, queues)}
            cap_hz, looked = self._kept_hz(seats, judged, most_hz, queues, looks)
            if cap_hz >= self.least_hz * (1 - ROUNDING):
                self.looked += looked
                return seats, cap_hz, self._reached_hz(seats, cap_hz)
            looks, self.looked = looks - looked, self.looked + looked
            avoided |= {_sort(host) for host in seats.values() if host.placement.server in judged}
            refused = refused or ScheduleError(
                f"another robot of {self._task.name!r} could have {cap_hz:.2f} actions/s on {', '.join(sorted(judged))}, where its "
                f"robots' own queue keeps every SLO; {self.least_hz:.2f} are owed to it"
            )
        raise refused

    def seats(self, avoided: Collection[Hashable] = ()) -> dict[int, ServerLoad]:
        """Assign each demand to the server with the most free capacity beside those before. Raises: `ScheduleError`."""
        seats: dict[int, ServerLoad] = {}
        for demand in sorted(self._task.demands, key=lambda d: d.goal_coupled):
            options = [h for h in self._hosts.values() if h.placement.model == demand.model and h.takes_robots]
            options = [h for h in options if _sort(h) not in avoided] if avoided else options
            best = max(options, key=lambda h: self._worth({**seats, demand.index: h}, h), default=None)
            if best is None:
                if self._hosts and not any(host.lives for host in self._hosts.values()):
                    raise ScheduleError("no server lives")
                raise ScheduleError(f"no server hosts {demand.model!r} for {demand.component} of {self._task.name!r}")
            needed_hz, seats[demand.index] = demand.rate_hz(self.least_hz), best
            if (room_hz := self._room_hz(seats, best) + needed_hz) < needed_hz * (1 - ROUNDING) or room_hz <= 0:
                raise ScheduleError(
                    f"{demand.component} of {self._task.name!r}: no server with {demand.model!r} keeps every SLO and standby with "
                    f"another robot; {best.placement.server} has room for {max(room_hz, 0.0):.2f} of {needed_hz:.2f} requests/s"
                )
            if not self._is_carried(seats):
                raise ScheduleError(
                    f"{demand.component} of {self._task.name!r}: no link of a host with {demand.model!r} takes what another robot "
                    "sends, now and after every loss that a standby covers (bandwidth_mbit_s)"
                )
        return seats

    def rates_hz(self, seats: Seats) -> tuple[float, float]:
        """Return (cap, prediction): highest rate with every promise kept, and closed-loop rate there. Raises: `ScheduleError`."""
        cap_hz = self._highest_hz(seats)
        rate_hz = self._reached_hz(seats, cap_hz)
        if rate_hz < self.least_hz * (1 - ROUNDING):
            raise ScheduleError(
                f"another robot of {self._task.name!r} would reach {rate_hz:.2f} actions/s on the servers as they are, "
                f"with every SLO, floor and standby kept; {self.least_hz:.2f} are owed to it"
            )
        return cap_hz, rate_hz

    # --- parts ---

    def _offered(self, queues: Queues, looks: int) -> str:
        """Return a text with the rate that the robot could have if less were owed to it."""
        lower = copy.copy(self)
        lower.least_hz = min(self.least_hz, STANDSTILL * self._task.max_rate_hz)
        try:
            seats = lower.seats()
            most_hz, _ = lower.rates_hz(seats)
        except ScheduleError:
            return f"less than the {self.least_hz:.2f} actions/s that are owed to it would not help"
        judged = {host.placement.server for host in seats.values() if self._is_judged(seats, host, queues)}
        cap_hz, looked = lower._kept_hz(seats, judged, most_hz, queues, looks)
        self.looked += looked
        if cap_hz < lower.least_hz * (1 - ROUNDING):
            return f"no rate below the {self.least_hz:.2f} actions/s that are owed to it was found that would help"
        where = ", ".join(sorted({host.placement.server for host in seats.values()}))
        told_hz = math.floor(100 * lower._reached_hz(seats, cap_hz)) / 100
        return f"it could have {told_hz:.2f} actions/s on {where}, and {self.least_hz:.2f} are owed to it"

    def _is_judged(self, seats: Seats, host: ServerLoad, queues: Queues) -> bool:
        return queues.judges(host.placement.server) and all(d.for_actions for d in self._here(seats, (host,)))

    def _kept_hz(self, seats: Seats, servers: Collection[str], most_hz: float, queues: Queues, looks: int) -> tuple[float, int]:
        """Return the highest rate found at which the queues of these servers keep every SLO, and the number of evaluations."""
        if not servers:
            return most_hz, 0
        components = {d.index: d.component for d in self._task.demands}
        where = tuple((components[index], host.placement.server) for index, host in seats.items())
        looked, low_hz, high_hz = 0, 0.0, most_hz
        asked_hz = [most_hz, self.least_hz] if self.least_hz < most_hz else [most_hz]
        while looked < min(looks, len(asked_hz) + CLOSER):
            hz = asked_hz[looked] if looked < len(asked_hz) and not low_hz else (low_hz + high_hz) / 2
            kind = RobotKind(self._task.name, where, hz, self._reached_hz(seats, hz))
            looked += 1
            if queues.kept(servers, kind) >= set(servers):
                if hz == most_hz:
                    return hz, looked
                low_hz = hz
            else:
                high_hz = hz
        return low_hz, looked

    def _reached_hz(self, seats: Seats, cap_hz: float) -> float:
        """Return the closed-loop rate of the robot beside the others."""
        extra = self._extra_hz(seats, cap_hz)
        return min(cap_hz, self._task.closed_loop_hz({d.index: self._mean_s(seats[d.index], extra) for d in self._task.coupled}))

    def _worth(self, seats: Seats, host: ServerLoad) -> tuple[bool, float]:
        """Return the rank of a server for its demand."""
        return self._is_carried(seats), self._room_hz(seats, host)

    def _is_carried(self, seats: Seats) -> bool:
        return self._link_hz(seats) >= self.least_hz * (1 - ROUNDING)

    def _link_hz(self, seats: Seats) -> float:
        """Return the action rate that links have capacity for."""
        if self._pledge is None:
            return math.inf
        fixed, each = defaultdict[str, dict[str, float]](dict), defaultdict[str, dict[str, float]](dict)
        name = self._task.name
        for demand in self._task.demands:
            if demand.index in seats:
                server = seats[demand.index].placement.server
                fixed[server][name] = fixed[server].get(name, 0.0) + demand.fixed_hz
                each[server][name] = each[server].get(name, 0.0) + demand.calls
        return self._pledge.most(fixed, each)

    def _highest_hz(self, seats: Seats) -> float:
        low_hz, high_hz = 0.0, min(self._task.max_rate_hz, max(self._link_hz(seats), 0.0))
        if self._holds(seats, high_hz):
            return high_hz
        if not self._holds(seats, low_hz):  # its load at a fixed rate alone slows others below their floor
            return low_hz
        for _ in range(BISECTIONS):
            middle_hz = (low_hz + high_hz) / 2
            low_hz, high_hz = (middle_hz, high_hz) if self._holds(seats, middle_hz) else (low_hz, middle_hz)
        return low_hz

    def _holds(self, seats: Seats, rate_hz: float) -> bool:
        extra = self._extra_hz(seats, rate_hz)
        rooms = all(room_hz >= 0 for host in seats.values() for room_hz in self._rooms_hz(seats, extra, host))
        return rooms and all(self._keeps_floor(task, seats, extra) for task in self._classes if task.floor_hz)

    def _room_hz(self, seats: Seats, host: ServerLoad) -> float:
        """Return the free capacity of a server and its standbys in requests/s, beside these demands at their owed rates."""
        return min(self._rooms_hz(seats, self._extra_hz(seats, self.least_hz), host))

    def _rooms_hz(self, seats: Seats, extra: Extra, host: ServerLoad) -> Iterator[float]:
        yield self._left_hz(seats, extra, host, (host,))
        standby = self._hosts.get(host.standby)
        if standby and not stands_in(standby.config, host.config, idle=not standby.sessions and host.standby not in extra):
            yield self._left_hz(seats, extra, standby, (standby, host))
        for other in self._covered.get(host.placement.server, ()):
            yield self._left_hz(seats, extra, host, (host, other))

    def _left_hz(self, seats: Seats, extra: Extra, on: ServerLoad, loads: tuple[ServerLoad, ...]) -> float:
        """Return the capacity that is left on one server with all of these loads, in requests/s."""
        here = self._here(seats, loads)
        rows = sum(host.frame_rows(self._demands) for host in loads) + sum(d.rows for d in here)
        if not has_rows(on.config, rows, self._curves):
            return -math.inf
        slos = {slo for host in loads for slo in host.slos} | {d.slo for d in here}
        beyond = loads == (on,) and on.placement.server in self._beyond and all(d.for_actions for d in self._here(seats, loads))
        most_hz = BUSIEST * self._curves.max_rate_hz(on.config) if beyond else on.capacity_hz(slos, self._curves)
        return most_hz - sum(host.load_hz + extra.get(host.placement.server, 0.0) for host in loads)

    def _here(self, seats: Seats, hosts: tuple[ServerLoad, ...]) -> list[Demand]:
        return [d for d in self._task.demands if seats.get(d.index) in hosts]

    def _extra_hz(self, seats: Seats, rate_hz: float) -> Extra:
        extra: dict[str, float] = {}
        for demand in self._task.demands:
            if demand.index in seats:
                server = seats[demand.index].placement.server
                extra[server] = extra.get(server, 0.0) + demand.rate_hz(rate_hz)
        return extra

    def _keeps_floor(self, task: TaskClass, seats: Seats, extra: Extra) -> bool:
        """Return whether the running robots of a task keep their floor, judged by the slowest server that any of them has."""
        used = {d.index: self._used[d.index] for d in task.coupled}
        if not any(h.placement.server in extra for hosts in used.values() for h in hosts):
            return True
        latency = {index: max((self._mean_s(h, extra) for h in hosts), default=0.0) for index, hosts in used.items()}
        return task.closed_loop_hz(latency) >= task.floor_hz * (1 - ROUNDING)

    def _mean_s(self, host: ServerLoad, extra: Extra) -> float:
        return host.mean_s(extra.get(host.placement.server, 0.0), self._curves)


def _sort(host: ServerLoad) -> Hashable:
    """Return a key that is equal for servers with the same configuration and the same robots."""
    return host.config, host.load_hz, frozenset(host.demands.items())
