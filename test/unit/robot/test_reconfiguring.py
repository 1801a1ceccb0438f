"""Other settings for a robot at work: what changes, what goes on, and what is refused without a trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot import RobotConfig
from ros2_rfm_serving.robot.chunk_validation import ChunkValidatorConfig, ChunkValidatorMode
from ros2_rfm_serving.robot.config import CommandType, ComponentClientConfig, FailSafeConfig, Motion, Rung, TaskPolicy
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.types import HorizonRequest
from test.unit.fakes import NAMES, chunk, rows
from test.unit.robot.robots import CONFIG, PERIOD_S, Rig, working

POSITION = replace(CONFIG, command_type=CommandType.POSITION, limits=MotionLimits(max_velocity=(10.0, 10.0)))


def moving(config: RobotConfig, values: np.ndarray) -> Rig:
    """With a chunk in its queue, and measured where that begins."""
    rig = working(config)
    rig.positions = values[0]
    rig.brain.on_reply(chunk(rig.ask(), values), rig.now_s)
    return rig


def change(rig: Rig, **fields: object) -> None:
    rig.brain.prepared(replace(rig.brain.config, **fields))()  # type: ignore[arg-type]


def command(rig: Rig) -> float:
    found = rig.tick().command
    assert found is not None
    return float(found[0])


def test_limits_count_from_the_next_command_on() -> None:
    rig = moving(CONFIG, rows(1.0, 4))
    assert command(rig) == 1.0
    change(rig, limits=MotionLimits(upper=(1.5, 1.5), tolerance=10.0))
    assert command(rig) == 1.5
    change(rig, limits=MotionLimits())
    assert command(rig) == 3.0
    change(rig, limits=MotionLimits(upper=(1.5, 1.5)))
    assert rig.tick().command is None and rig.brain.refused["out_of_limits"] == 1  # what was queued before is refused as well


def test_a_slower_robot_is_slower_at_once_and_does_not_jump() -> None:
    rig = moving(POSITION, rows(0.0, 8) * 0.5)
    commands = [command(rig), command(rig), command(rig)]
    assert np.allclose(np.diff(commands), 0.5)
    change(rig, limits=MotionLimits(max_velocity=(1.0, 1.0)))
    commands += [command(rig), command(rig)]
    assert np.allclose(np.diff(commands)[2:], 1.0 * PERIOD_S)


def test_position_limits_that_would_make_the_robot_jump_are_refused() -> None:
    rig = moving(POSITION, rows(2.0, 4))
    before, at = rig.brain.config, command(rig)
    with pytest.raises(ConfigurationError, match="lies outside of them"):
        change(rig, limits=MotionLimits(upper=(1.0, 1.0), max_velocity=(10.0, 10.0)), blend_steps=3)
    assert rig.brain.config is before and command(rig) > at


def test_velocities_are_within_new_limits_at_once() -> None:
    config = replace(CONFIG, command_type=CommandType.VELOCITY, fallback=(Rung(Motion.ZERO),))
    rig = moving(config, np.full((4, len(NAMES)), 2.0, np.float32))
    assert command(rig) == 2.0
    change(rig, limits=MotionLimits(lower=(-0.5, -0.5), upper=(0.5, 0.5), tolerance=10.0, max_acceleration=(1.0, 1.0)))
    assert command(rig) == 0.5


def test_another_ladder_is_gone_down_from_where_the_robot_is() -> None:
    config = replace(CONFIG, command_type=CommandType.VELOCITY, fallback=(Rung(Motion.ZERO),))
    rig = moving(config, np.full((1, len(NAMES)), 2.0, np.float32))
    assert command(rig) == 2.0
    change(rig, fallback=(Rung(Motion.RAMP_DOWN, 4 * PERIOD_S), Rung(Motion.ZERO)))
    slower = [command(rig) for _ in range(6)]
    assert slower[0] == 2.0 and slower == sorted(slower, reverse=True) and slower[-1] == 0.0 and 0.0 < slower[2] < 2.0


def test_a_ladder_that_would_not_stop_the_robot_is_refused() -> None:
    rig = moving(CONFIG, rows())
    before = rig.brain.config
    with pytest.raises(ConfigurationError, match="stops nothing"):
        change(rig, fallback=(Rung(Motion.REPEAT_LAST),))
    assert rig.brain.config is before


def test_another_horizon_asks_sooner() -> None:
    rig = working(replace(CONFIG, execution_horizon=4))
    values = rows(0.0, 12)

    def steps_to_next_request() -> int:
        rig.brain.on_reply(chunk(rig.ask(), values), rig.now_s)
        return next(step for step in range(1, 20) if rig.tick().requests)

    assert steps_to_next_request() == 4 + 1
    rig = working(replace(CONFIG, execution_horizon=4))
    change(rig, execution_horizon=2, horizon=HorizonRequest(steps=2))
    assert steps_to_next_request() == 2 + 1


def test_a_horizon_that_servers_were_told_does_not_change_behind_their_back() -> None:
    rig = working(replace(CONFIG, horizon=HorizonRequest(policy="confidence", steps=4)))
    with pytest.raises(ConfigurationError, match="when the session opened"):
        change(rig, execution_horizon=2, horizon=HorizonRequest(policy="confidence", steps=2))


def test_watchdogs_and_counts_follow() -> None:
    rig = moving(CONFIG, rows(0.0, 40))
    change(
        rig,
        max_action_age_s=2 * PERIOD_S,
        server_timeout_s=0.2,
        failsafe=FailSafeConfig(max_offline_s=0.3),
        link=ComponentClientConfig(request_timeout_s=0.1),
        policy=TaskPolicy(max_task_retries=5),
    )
    rig.tick(4)
    assert rig.brain.refused["stale_action"]
    rig.tick(8, seen=False)
    assert rig.brain.system1_server == "s1" and not rig.brain.sessions and rig.brain.refused["request_timeout"]
    rig.tick(20, seen=False)
    assert rig.brain.state.name == "DEAD"


def test_what_did_not_change_goes_on() -> None:
    """Another pace between chunks: the way down the ladder does not begin anew."""
    config = replace(CONFIG, command_type=CommandType.VELOCITY, fallback=(Rung(Motion.RAMP_DOWN, 10 * PERIOD_S), Rung(Motion.ZERO)))
    rigs = [moving(config, np.full((1, len(NAMES)), 2.0, np.float32)) for _ in range(2)]
    commands = []
    for rig, touched in zip(rigs, (False, True), strict=True):
        found = []
        for _ in range(8):
            found.append(command(rig))
            if touched:
                change(rig, blend_steps=rig.brain.config.blend_steps + 1)
        commands.append(found)
    assert commands[0] == commands[1]


def test_another_gate_counts_from_the_next_chunk_on() -> None:
    rig = moving(CONFIG, rows(0.0, 1))
    change(
        rig,
        gate=ChunkValidatorConfig(velocity=ChunkValidatorMode.REFUSE, max_velocity=(0.1, 0.1), statistics=ChunkValidatorMode.WARN),
    )
    assert rig.brain.validator_warnings == {"gate_statistics_unknown": 1}
    rig.brain.on_reply(chunk(rig.ask(), rows(0.0, 4)), rig.now_s)
    assert rig.brain.refused["gate_velocity"] == 1
    before = rig.brain.config
    with pytest.raises(ConfigurationError, match="nothing to compare with"):
        change(rig, gate=ChunkValidatorConfig(jerk=ChunkValidatorMode.REFUSE))
    assert rig.brain.config is before


def test_wrong_units_stay_known_when_another_check_changes() -> None:
    rig = working(replace(CONFIG, limits=MotionLimits(lower=(-1.0, -1.0), upper=(1.0, 1.0), tolerance=100.0)))
    for _ in range(4):
        rig.brain.on_reply(chunk(rig.ask(), rows(50.0, 4)), rig.now_s)
    refused = rig.brain.refused["gate_clamped"]
    assert refused
    change(rig, gate=ChunkValidatorConfig(jump=ChunkValidatorMode.WARN, max_jump=(1.0, 1.0)))
    rig.brain.on_reply(chunk(rig.ask(), rows(50.0, 4)), rig.now_s)
    assert rig.brain.refused["gate_clamped"] == refused + 1
