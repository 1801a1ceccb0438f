"""Newcomers are judged by the robots' own queue where plans are: curves say too little of some servers, too much of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Catalogue, Factory, Robot, parse_factory
from ros2_rfm_serving.profiles import COLUMNS, load_profiles, parse_profiles
from ros2_rfm_serving.scheduler import Fleet, admission, fleet_of, plan_factory, start_fleet
from ros2_rfm_serving.scheduler.prediction import closed_queue
from ros2_rfm_serving.scheduler.promises import broken
from ros2_rfm_serving.scheduler.queues import Queues
from ros2_rfm_serving.simulation.profiled_factories import profiled_factory
from ros2_rfm_serving.types import SYSTEM1

PROFILE = parse_profiles(
    f"""{",".join(COLUMNS)}
policy,GPU,fixed,1,1,50,50,51,52,53
policy,GPU,fixed,1,20,52,50,52,53,55
"""
)
"""Of robots that happened not to meet."""
LATE = Robot(name="late", task="carry", index=99)


def factory(floor_hz: float, servers: int = 1) -> Factory:
    """Asynchronous robots, for whom an SLO of 92 ms leaves hardly any room to meet another: those at 2 actions/s meet for ever."""
    return parse_factory(f"""
server_cluster: {{num_servers: {servers}, gpu_type: GPU}}
standby: {{peers: false}}
robot_fleet: [{{task: carry, num_robots: {servers}}}]
carry:
  min_action_rate_hz: {floor_hz}
  execution: {{mode: async}}
  pipeline: {{action_period_ms: 500}}
  components: {{system1: {{model: policy, slo_ms: 92}}}}
""")


def fleet(declared: Factory) -> Fleet:
    return start_fleet(declared, declared.robots, PROFILE, None, epoch=1)


def rate_hz(fleet: Fleet) -> float:
    return fleet.schedule.routes_of("late")[SYSTEM1].max_rate_hz


def by_curves(running: Fleet, robot: Robot, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    with monkeypatch.context() as patch:
        patch.setattr(Queues, "judges", lambda queues, server: False)
        return running.admit(robot, adjusting=False)


def test_whom_the_curve_admits_wrongly_is_refused_with_the_rate_that_it_could_have(monkeypatch: pytest.MonkeyPatch) -> None:
    running = fleet(factory(1.95))
    assert rate_hz(by_curves(running, LATE, monkeypatch)) > 1.95, "by the curve there is room"
    with pytest.raises(ScheduleError, match=r"could have 0.97 actions/s on server_1, .*own queue .* 1.95 are owed"):
        running.admit(LATE)


def test_a_newcomer_goes_as_fast_as_the_queue_keeps_every_slo(monkeypatch: pytest.MonkeyPatch) -> None:
    running = fleet(factory(0.5))
    fast, admitted = by_curves(running, LATE, monkeypatch), running.admit(LATE)
    assert 0.9 < rate_hz(admitted) < rate_hz(fast)
    assert admitted.queues().kept({"server_1"}) and not fast.queues().kept({"server_1"})


def test_whom_the_curve_refuses_wrongly_is_admitted(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan loads a server further than its curve says, for its robots' queue keeps every SLO: with one more it still does."""
    folder = repository / "config" / "profiles"
    shipped = load_profiles(folder), Catalogue.load(folder / "models.yaml")
    declared = profiled_factory(2, network=True)
    running = fleet_of(declared, plan_factory(declared, *shipped, work=0.0, explained=False), declared.robots, *shipped, epoch=1)
    late = Robot(name="late", task="task_0", index=99)
    with pytest.raises(ScheduleError, match="no server with"):
        by_curves(running, late, monkeypatch)
    running._no_room.clear()
    admitted = running.admit(late, adjusting=False)
    server = admitted.schedule.routes_of("late")[SYSTEM1].server
    assert admitted.queues().kept({server}) and not broken(admitted)


def test_looks_at_queues_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many servers there are: equal ones are one."""
    running, looks = fleet(factory(1.95, servers=12)), list[object]()
    kept = Queues.kept

    def counted(queues: Queues, *asked: Any) -> set[str]:
        looks.append(asked)
        return kept(queues, *asked)

    monkeypatch.setattr(Queues, "kept", counted)
    monkeypatch.setattr(closed_queue, "REMEMBERED", 0)
    with pytest.raises(ScheduleError, match="could have"):
        running.admit(LATE, adjusting=False)
    assert 0 < len(looks) <= admission.LOOKS
