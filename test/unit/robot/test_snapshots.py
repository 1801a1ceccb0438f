"""A robot's core goes on from a snapshot as if nothing had happened: whatever had happened before, and whatever happens after."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.faults import FaultPlan
from ros2_rfm_serving.robot import RobotConfig, RobotCore, events
from ros2_rfm_serving.robot.chunk_validation import ChunkValidatorConfig, ChunkValidatorMode
from ros2_rfm_serving.robot.config import CommandType, Motion, Rung
from ros2_rfm_serving.robot.core import HANDLERS
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.types import Conditioning
from test.unit.robot.mirrored import INPUTS, MirroredBrain, stored
from test.unit.robot.robot_happenings import TABLE, Happenings
from test.unit.robot.robot_shadow import Shadow
from test.unit.robot.robot_world import NAMES, Sent, World
from test.unit.robot.robots import FAILING, begin, world
from test.unit.robot.test_robot_machine import PipelinedMachine, RobotMachine

SEEN: Counter[str] = Counter()
NUM = len(NAMES)
REST = (math.inf,) * (NUM - 2)
POSITION = dataclasses.replace(
    FAILING,
    command_type=CommandType.POSITION,
    limits=MotionLimits(
        lower=(-1.0,) * NUM,
        upper=(1.0, 1.0, *(5000.0,) * (NUM - 2)),
        max_velocity=(5.0, 5.0, *REST),
        max_acceleration=(20.0, 20.0, *REST),
    ),
    fallback=(Rung(Motion.REPEAT_LAST, 0.2), Rung(Motion.RAMP_DOWN, 0.3), Rung(Motion.HOLD)),
)
CONFIGS: dict[str, RobotConfig] = {
    "displacements": FAILING,
    "jerk": dataclasses.replace(
        POSITION,
        limits=dataclasses.replace(POSITION.limits, max_jerk=(100.0, 100.0, *REST)),
        interpolation=2,
        blend_steps=2,
    ),
    "trajectories": dataclasses.replace(
        POSITION, trajectory_horizon_s=0.5, limits=MotionLimits(max_velocity=(5.0,) * NUM, max_acceleration=(20.0,) * NUM)
    ),
    "types": dataclasses.replace(
        FAILING,
        command_types=(CommandType.POSITION, CommandType.VELOCITY, CommandType.BINARY, *(CommandType.DELTA,) * (NUM - 3)),
        limits=MotionLimits(max_velocity=(5.0, *(math.inf,) * (NUM - 1)), max_acceleration=(20.0, 5.0, *REST)),
        fallback=(Rung(Motion.RAMP_DOWN, 0.3), Rung(Motion.ZERO)),
    ),
    "continuous": dataclasses.replace(
        POSITION,
        turns=(2.0, *(0.0,) * (NUM - 1)),
        gate=ChunkValidatorConfig(
            jump=ChunkValidatorMode.WARN, max_jump=(0.5,) * NUM, statistics=ChunkValidatorMode.WARN, max_clamped=0.9
        ),
        conditioning=Conditioning.GUIDED,
    ),
    "appended": dataclasses.replace(FAILING, replace_queue=False, calls_per_action={"system2": 0.5}),
    "synchronous": dataclasses.replace(FAILING, synchronous=True, calls_per_action={"system2": 0.5}),
}
RETUNED: list[dict[str, Any]] = [
    {"server_timeout_s": 0.7},
    {"limits": MotionLimits(max_velocity=(3.0,) * NUM, max_acceleration=(9.0,) * NUM)},
    {"execution_horizon": 5, "max_action_age_s": 0.6},
    {"gate": ChunkValidatorConfig(jump=ChunkValidatorMode.WARN, max_jump=(0.1,) * NUM)},
    {"fallback": (Rung(Motion.RAMP_DOWN, 0.2), Rung(Motion.ZERO))},
    {"fallback": (Rung(Motion.RAMP_DOWN, 0.2), Rung(Motion.HOLD))},
]


class MirroredMachine(RobotMachine):
    """The robot of the promises' test, with whatever may happen to it."""

    make: Callable[[RobotConfig], RobotCore] = MirroredBrain

    @rule(what=st.sampled_from(["bad_message", "late_session"]), count=st.integers(1, 3))
    def others_count(self, what: str, count: int) -> None:
        self.brain.refused[what] += count

    def teardown(self) -> None:
        if hasattr(self, "world"):
            note(self.brain)


class MirroredPipelinedMachine(MirroredMachine, PipelinedMachine):
    """The same with requests in flight beside one another."""


def note(core: RobotCore) -> None:
    assert isinstance(core, MirroredBrain)
    core.mirror.renew()
    SEEN.update(twins=core.mirror.num_twins, decisions=core.mirror.num_decisions)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("machine", [MirroredMachine, MirroredPipelinedMachine])
def test_whatever_happens_a_restored_core_is_equal_and_decides_alike(machine: type[MirroredMachine]) -> None:
    before = SEEN.copy()
    effort = settings(
        max_examples=8, stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
    )
    run_state_machine_as_test(machine, settings=effort)
    assert SEEN["twins"] - before["twins"] > 50 and SEEN["decisions"] - before["decisions"] > 1000


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CONFIGS)
def test_and_so_does_one_of_each_kind_of_robot(name: str) -> None:
    """Storms of small things, with other settings now and then."""
    routes = {"system1": (100.0, 0.15), "system2": (2.0, 0.3), "safety": (4.0, 0.15), "monitor": (2.0, 0.0)}
    made = World(CONFIGS[name], FaultPlan(delay_s=0.02, drop=0.02, duplicate=0.05), 1, routes, MirroredBrain)
    rng, on = random.Random(name), Happenings(made, Shadow(made), Counter())
    made.arrived = lambda *_: None  # which promises it keeps is tested elsewhere
    made.brain.on_schedule(made.schedule(), made.now_s)
    begin(made)
    for number in range(300):
        if number % 3 == 0:
            on.happen(rng.randrange(len(TABLE)))
        if number % 40 == 39:
            retune(made.brain, rng.choice(RETUNED))
        made.advance(on.takes_periods() / made.config.control_rate_hz)
        for server, request in made.tick().requests:
            made.send(Sent(server, request, made.now_s, made.now_s, made.servers[server].model_hash))
        if made.brain.stop_reason and number % 10 == 0:
            made.brain.resume(made.now_s)
    note(made.brain)
    assert made.brain.stalenesses.sum > 0.0, "it never moved"


def retune(core: RobotCore, changes: dict[str, Any]) -> None:
    try:
        core.prepared(dataclasses.replace(core.config, **changes))()
    except RfmError:
        SEEN["unfit"] += 1


def working() -> World:
    made = world(system2=0.3, safety=0.3)
    made.run(3.0)
    assert made.brain.queue_depth
    return made


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("task",),
        ("motion",),
        ("motion", "queue"),
        ("client", "connections"),
        ("client", "connections", "components", "system1"),
        ("client", "connections", "components", "system1", "phase"),
        ("figures", "system1"),
        ("schedule_follower",),
    ],
)
def test_a_state_with_other_names_is_refused_with_them(path: tuple[str, ...]) -> None:
    core = working().brain
    unknown, lacking, nothing = (copy.deepcopy(core.snapshot()) for _ in range(3))
    part_of(unknown, path)["hat"] = 1
    name = next(iter(part_of(lacking, path)))
    del part_of(lacking, path)[name]
    with pytest.raises(RfmError, match="has hat, which this version does not know"):
        RobotCore.from_state(core.config, unknown)
    with pytest.raises(RfmError, match=rf"lacks {name}"):
        RobotCore.from_state(core.config, lacking)
    if path and path != ("task",):
        part_of(nothing, path[:-1])[path[-1]] = None
        with pytest.raises(RfmError, match="no state"):
            RobotCore.from_state(core.config, nothing)


def part_of(state: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for name in path:
        state = state[name]
    return state


def test_a_snapshot_does_not_change_with_its_core() -> None:
    made = working()
    taken = made.brain.snapshot()
    before = stored(taken)
    made.run(2.0)
    assert repr(stored(taken)) == repr(before)


def test_a_snapshot_names_no_attribute_that_is_private() -> None:
    def names(state: Any) -> set[str]:
        if not isinstance(state, dict):
            return set()
        return {key for key in state if isinstance(key, str)}.union(*(names(value) for value in state.values()))

    found = names(working().brain.snapshot())
    assert len(found) > 100 and not [name for name in found if name.startswith("_")]


def test_each_input_has_an_event_and_each_event_a_handler() -> None:
    assert set(HANDLERS) == set(get_args(events.Event))
    assert set(INPUTS.values()) | {events.ConfigurationChanged, events.CountsAdded} == set(HANDLERS)


def test_events_are_values() -> None:
    for kind in HANDLERS:
        assert dataclasses.is_dataclass(kind)
    first, second = events.ServerLost("s1"), events.ServerLost("s1")
    assert first == second and first != events.ServerLost("s2")


def test_a_tick_is_answered_by_its_instructions() -> None:
    core = RobotCore(FAILING)
    assert core.handle(events.ControlTick(None), 1.0).command is None
    assert core.handle(events.CountsAdded({"bad_message": 2}), 1.0) is None and core.refused["bad_message"] == 2
    assert core.handle(events.AbortRequested(), 1.0) == "there is no task"
    assert np.array_equal(core.handle(events.StopRequested(), 1.0) or 0.0, 0.0)
