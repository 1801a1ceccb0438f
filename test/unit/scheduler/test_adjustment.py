"""An admission that is only possible if others go slower, or if a server batches otherwise; nobody moves (ROSA §3.4.4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.scheduler import ActiveFleet
from ros2_rfm_serving.types import SYSTEM1, Placement
from test.unit.scheduler.test_adaptation import PROFILE, factory, fleet, newcomer


def growing(running: ActiveFleet, task: str = "carry") -> Iterator[tuple[ActiveFleet, ActiveFleet]]:
    """One robot after the other, until one is refused: the fleet before and after."""
    for number in range(100):
        try:
            after = running.admit(newcomer(f"late_{number}", task))
        except ScheduleError:
            return
        yield running, after
        running = after


def rates_hz(running: ActiveFleet) -> dict[str, float]:
    return {route.robot: route.predicted_rate_hz for route in running.schedule.routes if route.component == SYSTEM1}


def goes_slower(before: ActiveFleet, after: ActiveFleet) -> bool:
    """Anybody."""
    return any(rates_hz(after)[robot] < hz - 1e-6 for robot, hz in rates_hz(before).items())


def key(placement: Placement) -> tuple[str, str, str, int]:
    return placement.model, placement.gpu_type, placement.batching, placement.batch_size


def holds_by_the_measured_figures(running: ActiveFleet, floor_hz: float = 0.0) -> None:
    """SLOs at the load of every server; its replies allow every robot its floor; robots may send what is counted on."""
    for placement in running.schedule.placements:
        mine = [route for route in running.schedule.routes if route.server == placement.server]
        load_hz = sum(route.predicted_rate_hz for route in mine)
        assert load_hz <= PROFILE.max_rate_hz(*key(placement)) * (1 + 1e-6)
        assert all(PROFILE.latency_s(*key(placement), load_hz, "p99") <= route.slo_s * (1 + 1e-6) for route in mine)
        for route in mine:
            assert route.predicted_rate_hz <= route.max_rate_hz * (1 + 1e-9)
            if route.component == SYSTEM1:
                reply_s = PROFILE.latency_s(*key(placement), load_hz, "mean")
                assert min(route.predicted_rate_hz, 1 / (0.4 + reply_s)) >= floor_hz - 1e-9


def test_others_go_slower_where_a_newcomer_fits_so_alone() -> None:
    """Within the SLO one server of this model has 20 requests/s, whatever its batches."""
    running = fleet(factory(robots=8, servers=2, extra="standby: {peers: false}", slo_ms=30))
    planned_hz = rates_hz(running)
    steps = list(growing(running))
    slowed = [after for before, after in steps if goes_slower(before, after)]
    assert slowed, "everybody kept its rate"
    for before, after in steps:
        holds_by_the_measured_figures(after)
        assert min(rates_hz(after).values()) >= 0.5 * min(planned_hz.values()) - 1e-9
        was = {(route.robot, route.component): route.server for route in before.schedule.routes}
        assert was.items() <= {(route.robot, route.component): route.server for route in after.schedule.routes}.items()
        assert after.schedule.epoch == before.schedule.epoch + 1
    alike = set(rates_hz(slowed[-1]).values())
    assert len(alike) == 1, "robots of a class share its rate"


def test_a_server_batches_otherwise_where_a_newcomer_fits_so_alone() -> None:
    """10 robots at 1.9 actions/s fill a server that takes one request after the other; in batches of 8 it has room for 13."""
    running = fleet(factory(robots=4, servers=2, floor="min_action_rate_hz: 1.9", extra="standby: {peers: false}", watch_hz=1))
    (sizes,) = [[p.batch_size for p in running.schedule.placements if p.model == "policy"]]
    assert sizes == [1]
    steps = list(growing(running))
    last = steps[-1][1]
    assert {p.batch_size for p in last.schedule.placements if p.model == "policy"} == {8} and len(last.robots) == 13
    for _, after in steps:
        holds_by_the_measured_figures(after, floor_hz=1.9)


def test_who_is_refused_hears_that_slower_robots_would_not_do_either() -> None:
    running = fleet(factory(robots=8, servers=2, extra="standby: {peers: false}"))
    *_, (_, full) = growing(running)
    with pytest.raises(
        ScheduleError, match=r"server_\d has room for .* nor if every robot has no more than its floor and its fair"
    ):
        full.admit(newcomer("one_more"))


def test_a_standby_still_carries_both_loads_when_others_go_slower() -> None:
    running = fleet(factory(robots=2, servers=4))
    covered = {route.server: route.standby for route in running.schedule.routes if route.standby}
    assert covered, "this factory has servers that cover each other"
    steps = list(growing(running))
    assert any(goes_slower(before, after) for before, after in steps)
    for _, after in steps:
        hosts = {p.server: p for p in after.schedule.placements}
        loads = {name: sum(r.predicted_rate_hz for r in after.schedule.routes if r.server == name) for name in hosts}
        for server, standby in {(r.server, r.standby) for r in after.schedule.routes if r.standby}:
            slo_s = min(r.slo_s for r in after.schedule.routes if r.server in (server, standby))
            both_hz = loads[server] + loads[standby]
            assert both_hz <= PROFILE.capacity_hz(*key(hosts[standby]), slo_s, 99.0) * (1 + 1e-6)
