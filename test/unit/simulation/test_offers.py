"""What a refusal offers is to be had, and where it offers nothing there is nothing, in factories drawn at random."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import RobotEntry
from ros2_rfm_serving.scheduler import ActiveFleet, PlanJob, plan
from ros2_rfm_serving.scheduler.admission import STANDSTILL, AdmissionDecision
from ros2_rfm_serving.scheduler.server_load import ServerLoad
from test.unit.simulation.test_scheduler_day import drawn

SEEDS, GUESTS, SEATINGS = 12, 60, 200
OFFERED = re.compile(r"it could have ([\d.]+) actions/s on server_\d+")
NOTHING = "that are owed to it would not help"
ROUNDING = 1e-9
LOOKS = 6


def test_what_is_offered_is_given_and_where_nothing_is_no_seats_are_left() -> None:
    told: Counter[str] = Counter()
    for fleet, task, refusal in refusals():
        admission = asking(fleet, task)
        if offer := OFFERED.search(refusal):
            told["offered"] += 1
            admission.least_hz = max(float(offer[1]), STANDSTILL * fleet._classes[task].max_rate_hz)
            _, _, reached_hz = admission.best(fleet.queues(), LOOKS)  # raises, if it is refused
            assert reached_hz >= admission.least_hz * (1 - ROUNDING)
        elif NOTHING in refusal:
            told["nothing"] += 1
            admission.least_hz = STANDSTILL * fleet._classes[task].max_rate_hz
            assert not any(is_seated(admission, fleet, task, seats) for seats in itertools.islice(seatings(fleet, task), SEATINGS))
    assert told["offered"] >= 5 and told["nothing"] >= 5, told


def refusals() -> Iterator[tuple[ActiveFleet, str, str]]:
    """(fleet, task, why no other robot of it is admitted)"""
    for seed in range(SEEDS):
        factory, profile = drawn(seed)
        try:
            first = plan(
                PlanJob(factory=factory, robots=factory.robots, policy="best"), profile, None, work=0.0, explained=False
            ).fleet
        except ScheduleError:
            continue
        for task in sorted(factory.tasks):
            fleet = first
            try:
                for i in range(GUESTS):
                    fleet = fleet.admit(RobotEntry(name=f"guest_{i}", task=task, index=100 + i), adjusting=False)
            except ScheduleError as error:
                yield fleet, task, str(error)


def asking(fleet: ActiveFleet, task: str) -> AdmissionDecision:
    """Of another robot to which next to nothing is owed."""
    queues = fleet.queues()
    beyond = [server for server in fleet._beyond if queues.judges(server)]
    return AdmissionDecision(fleet._classes[task], fleet.problem.classes, fleet.hosts, fleet.curves, 0.0, fleet.pledge, beyond)


def seatings(fleet: ActiveFleet, task: str) -> Iterator[dict[int, ServerLoad]]:
    demands = fleet._classes[task].demands
    those = [[host for host in fleet.hosts.values() if host.placement.model == d.model and host.takes_robots] for d in demands]
    for hosts in itertools.product(*those):
        yield {demand.index: host for demand, host in zip(demands, hosts, strict=True)}


def is_seated(admission: AdmissionDecision, fleet: ActiveFleet, task: str, seats: dict[int, ServerLoad]) -> bool:
    if not admission._holds(seats, admission.least_hz) or not admission._is_carried(seats):
        return False
    return admission._reached_hz(seats, admission._highest_hz(seats)) >= admission.least_hz
