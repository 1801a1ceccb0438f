"""Ten seconds of too much, and then 300 robots again: nothing outlives its cause, and they do not come back in step."""

from __future__ import annotations

from collections import Counter

import pytest

from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.simulation.conditions import ConnectionCut, NetworkConditions, SimulationConditions, StragglerConditions
from ros2_rfm_serving.simulation.robot import SimulatedRobot
from ros2_rfm_serving.simulation.simulate import Simulation
from ros2_rfm_serving.simulation.simulated_server import SimulatedServer
from ros2_rfm_serving.simulation.timing import Timing
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import Placement, RobotState, Route, Schedule

NUM_ROBOTS, PERIOD_S = 300, 2.0
BEGIN_S, END_S = 4.0, 14.0
AGAIN_S = 5.0
"""After the end, by which every robot streams."""
IN_STEP_S = 0.02
"""Sessions asked for within this are asked for at once."""


def models() -> Catalogue:
    """40 + 4 b ms: 190 requests per second at most, of which 300 robots want 150."""
    service = {"jitter": 0.0, "batching": "fixed", "base_ms": 40, "per_row_ms": 4, "batch_sizes": [1, 4, 16, 32]}
    gpu = {"memory_gb": 1, "load_s": 3, "source": "test", "derivation": "test", "service": service}
    return Catalogue.model_validate({"models": {"vla": {"engine": "emulated", "gpus": {"GPU": gpu}}}})


def factory(num_robots: int) -> Factory:
    return parse_factory(f"""
server_cluster: {{num_servers: 1, gpu_type: GPU}}
robot_fleet: [{{task: pick, num_robots: {num_robots}}}]
pick:
  execution: {{mode: async}}
  pipeline: {{action_period_ms: {1e3 * PERIOD_S:g}, system2_to_system1_call_ratio: 0}}
  components:
    system1: {{model: vla, prompt: go, slo_ms: 800}}
""")


def schedule(plant: Factory) -> Schedule:
    place = Placement(
        server="s1",
        model="vla",
        components=("system1",),
        gpu_type="GPU",
        batching="fixed",
        batch_size=32,
        max_sessions=1000,
        predicted_p99_s=0.0,
    )
    routes = tuple(
        Route(robot=robot.name, component="system1", server="s1", max_rate_hz=1.0 / PERIOD_S, slo_s=0.8) for robot in plant.robots
    )
    return Schedule(epoch=1, placements=(place,), routes=routes, predicted_actions_hz=0.0, policy="test")


DEAD_LINK = SimulationConditions(network=NetworkConditions(latency_s=0.005, cuts=(ConnectionCut(start_s=BEGIN_S, end_s=END_S),)))
SLOW_ENGINE = SimulationConditions(stragglers=StragglerConditions(share=1.0, factor=10.0, from_s=BEGIN_S, until_s=END_S))
GUESTS = [robot.name for robot in factory(2 * NUM_ROBOTS).robots[NUM_ROBOTS:]]
TOO_MANY = SimulationConditions(joins=dict.fromkeys(GUESTS, BEGIN_S), leaves=dict.fromkeys(GUESTS, END_S))


@pytest.mark.parametrize("conditions", [DEAD_LINK, SLOW_ENGINE, TOO_MANY], ids=["dead link", "slow engine", "too many"])
def test_after_ten_seconds_of_too_much_every_robot_streams_again_within_five(
    conditions: SimulationConditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_s: list[float] = []
    open_session = SimulatedServer.open_session

    def noted(host: SimulatedServer, robot: SimulatedRobot, opening: object) -> None:
        opened_s.append(simulation.world.events.now_s)
        open_session(host, robot, opening)  # type: ignore[arg-type]

    monkeypatch.setattr(SimulatedServer, "open_session", noted)
    plant = factory(2 * NUM_ROBOTS if conditions is TOO_MANY else NUM_ROBOTS)
    timing = Timing(catalogue=models(), profile=Profile({}))
    simulation = Simulation(schedule(plant), plant, timing, World(seed=1, warm_up_s=2.0, conditions=conditions))
    robots = [simulation._robots[robot.name] for robot in plant.robots[:NUM_ROBOTS]]
    simulation.world.events.run(END_S + AGAIN_S, None)
    assert Counter(robot.brain.state for robot in robots) == {RobotState.STREAMING: NUM_ROBOTS}
    late = [s for robot in robots if (s := robot.brain.staleness_s) > 2.0 * PERIOD_S]
    assert not late
    returned = sorted(s for s in opened_s if s >= END_S)
    in_step = max((sum(s <= other < s + IN_STEP_S for other in returned) for s in returned), default=0)
    assert in_step <= NUM_ROBOTS / 4, f"{in_step} of {len(returned)} sessions are asked for at once"
    counters = simulation.report(END_S).counters
    assert counters.sent == sum((counters.answered, counters.late, counters.lost, counters.refused, counters.dropped)) + (
        counters.in_flight
    )
