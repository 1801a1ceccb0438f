"""Whole chunks are looked at before their first row moves anything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.chunk_validation import ChunkValidatorConfig, ChunkValidatorMode
from ros2_rfm_serving.robot.config import CommandType
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.robot.motion.chunk_validator import FIRST_CHUNKS, ChunkValidator
from test.unit.fakes import CONTRACT, NAMES, chunk, grant, rows, schedule
from test.unit.robot.robots import CONFIG, GOAL, Rig, working

STEP_S = 0.1
REFUSE, WARN = ChunkValidatorMode.REFUSE, ChunkValidatorMode.WARN
LINE = np.linspace([0.0], [0.5], 6)
"""1 per second."""


def gate(order: int = 1, limits: MotionLimits | None = None, **config: object) -> ChunkValidator:
    return ChunkValidator(ChunkValidatorConfig(**config), limits or MotionLimits(), 1, STEP_S, order=order)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("check", "config", "good", "bad"),
    [
        ("jump", {"max_jump": (0.2,)}, LINE + 0.1, LINE + 0.3),
        ("velocity", {"max_velocity": (1.1,)}, LINE, 2.0 * LINE),
        ("acceleration", {"max_acceleration": (2.0,)}, LINE, LINE**2 * 10.0),
        ("jerk", {"max_jerk": (5.0,)}, LINE**2, LINE**3 * 10.0),
        ("workspace", {"workspace_lower": (-0.1,), "workspace_upper": (0.6,)}, LINE, LINE + 0.2),
        ("statistics", {"action_mean": (0.2,), "action_std": (0.1,), "max_deviations": 4.0}, LINE, LINE + 0.2),
    ],
)
def test_each_check_finds_its_fault_and_does_as_it_is_told(
    check: str, config: dict[str, object], good: np.ndarray, bad: np.ndarray
) -> None:
    last = np.zeros(1, np.float32)
    for mode, said in ((REFUSE, (f"gate_{check}", ())), (WARN, ("", (f"gate_{check}",))), (ChunkValidatorMode.OFF, ("", ()))):
        made = gate(**config, **{check: mode})
        assert made.validate(good, last) == ("", ())
        assert made.validate(bad, last) == said
    assert gate(**config, **{check: REFUSE}).validate(bad, None)[0] == ("" if check == "jump" else f"gate_{check}")


def test_velocities_are_judged_as_they_are() -> None:
    made = gate(order=0, velocity=REFUSE, max_velocity=(0.4,), acceleration=REFUSE, max_acceleration=(1.1,))
    assert made.validate(LINE[:4], None) == ("", ())
    assert (
        made.validate(LINE, None)[0] == "gate_velocity"
        and made.validate(LINE[:4] * [[1], [-1], [1], [-1]], None)[0] == "gate_acceleration"
    )


def test_wrong_units_are_said_and_refused_and_a_corner_is_not() -> None:
    limits = MotionLimits(lower=(-1.0,), upper=(1.0,), tolerance=1e9)
    degrees, corner = gate(limits=limits), gate(limits=limits)
    verdicts = [degrees.validate(60.0 * LINE + 10.0, None)[0] for _ in range(5)]
    assert verdicts == ["", "", "gate_clamped", "gate_clamped", "gate_clamped"] and "100 %" in degrees.units
    for _ in range(FIRST_CHUNKS):
        assert corner.validate(LINE + 0.6, None) == ("", ()), "a little beyond its limits"
    assert not corner.units
    for _ in range(FIRST_CHUNKS):
        assert corner.validate(60.0 * LINE, None) == ("", ()), "only the first ones tell"


def test_a_check_with_nothing_to_compare_with_is_a_mistake() -> None:
    with pytest.raises(ConfigurationError, match="nothing to compare with") as caught:
        gate(jerk=REFUSE)
    assert caught.value.key == "gate.max_jerk"
    with pytest.raises(ConfigurationError, match="2 values for 1 actions"):
        gate(max_jump=(1.0, 1.0))


@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("max_jump", {"jump": REFUSE, "max_jump": (np.nan,)}),
        ("max_velocity", {"velocity": REFUSE, "max_velocity": (-1.0,)}),
        ("max_clamped", {"max_clamped": np.nan}),
        ("action_std", {"statistics": REFUSE, "action_mean": (0.0,), "action_std": (np.nan,)}),
        ("workspace_upper", {"workspace": REFUSE, "workspace_lower": (0.0,), "workspace_upper": (np.nan,)}),
        ("workspace_lower", {"workspace": REFUSE, "workspace_lower": (1.0,), "workspace_upper": (0.0,)}),
    ],
)
def test_a_threshold_that_finds_nothing_or_everything_is_a_mistake(key: str, config: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        gate(**config)
    assert caught.value.key == f"gate.{key}"


def test_a_workspace_that_is_open_on_one_side_has_the_other() -> None:
    made = gate(workspace=REFUSE, workspace_lower=(-0.1,), workspace_upper=(np.inf,))
    assert made.validate(LINE, None) == ("", ()) and made.validate(LINE - 0.2, None)[0] == "gate_workspace"


def answered(config: ChunkValidatorConfig) -> Rig:
    """A robot whose first chunk goes from 0 to 3 in three steps."""
    rig = working(replace(CONFIG, gate=config))
    rig.brain.on_reply(chunk(rig.ask(), rows(0.0)), rig.now_s)
    return rig


@pytest.mark.parametrize("mode", [REFUSE, WARN])
def test_a_robot_drops_the_chunk_or_counts_it(mode: ChunkValidatorMode) -> None:
    rig = answered(ChunkValidatorConfig(velocity=mode, max_velocity=(2.5, 2.5)))
    refuses = mode is REFUSE
    assert rig.brain.refused["gate_velocity"] == refuses and rig.brain.validator_warnings["gate_velocity"] == (not refuses)
    assert (rig.tick().command is None) == refuses


def test_statistics_are_the_models_own_unless_the_robot_has_others() -> None:
    made = gate(statistics=REFUSE, max_deviations=4.0)
    assert made.validate(LINE + 100.0, None) == ("", ()), "nothing to compare with yet"
    assert made.trained((0.2,), (0.1,)) == ""
    assert made.validate(LINE, None) == ("", ()) and made.validate(LINE + 0.2, None)[0] == "gate_statistics"
    own = gate(statistics=REFUSE, max_deviations=4.0, action_mean=(10.0,), action_std=(0.2,))
    assert own.trained((0.2,), (0.1,)) == "" and own.validate(LINE + 9.8, None) == ("", ())
    with pytest.raises(ConfigurationError, match="only one is given"):
        gate(statistics=REFUSE, action_mean=(0.2,))


@pytest.mark.parametrize("said", [((), ()), ((0.0, 0.0), (1.0, 1.0)), ((0.0,), ()), ((np.nan,), (1.0,)), ((0.0,), (-1.0,))])
def test_a_model_without_usable_statistics_is_not_checked_and_that_is_said(said: tuple[tuple[float, ...], ...]) -> None:
    made = gate(statistics=REFUSE)
    made.trained((0.2,), (0.1,))
    assert made.trained(*said) == "gate_statistics_unknown" and made.validate(LINE + 100.0, None) == ("", ())
    assert gate().trained(*said) == "", "off"


def test_a_session_brings_the_statistics_of_its_model() -> None:
    rig = Rig(replace(CONFIG, gate=ChunkValidatorConfig(statistics=REFUSE)))
    rig.brain.on_schedule(schedule(), rig.now_s)
    rig.tick()
    trained = replace(CONTRACT, action_mean=(0.0, 0.0), action_std=(0.1, 0.1))
    rig.brain.on_session_opened("system1", "s1", grant(5, trained), rig.now_s)
    rig.brain.start(GOAL, rig.now_s)
    rig.brain.on_reply(chunk(rig.ask(), rows(0.0)), rig.now_s)
    assert rig.brain.refused["gate_statistics"] == 1 and not rig.brain.validator_warnings
    assert answered(ChunkValidatorConfig(statistics=WARN)).brain.validator_warnings == {"gate_statistics_unknown": 1}


ARM = replace(CONFIG, command_type=CommandType.POSITION, gate=ChunkValidatorConfig(jump=REFUSE, max_jump=(0.2, 0.2)))
"""Without limits: nothing else keeps it from jumping."""


def at(value: float, length: int = 6) -> np.ndarray:
    return np.full((length, len(NAMES)), value, np.float32)


def test_an_arm_that_stands_jumps_nowhere_with_its_first_chunk() -> None:
    rig = working(ARM)
    rig.positions = at(0.0)[0]
    rig.brain.on_reply(chunk(rig.ask(), at(2.0)), rig.now_s)
    assert rig.tick().command is None and rig.brain.refused["gate_jump"] == 1
    rig.brain.on_reply(chunk(rig.ask(), at(0.1)), rig.now_s)
    assert rig.tick().command is not None


@pytest.mark.parametrize("limits", [MotionLimits(), MotionLimits(max_velocity=(1.0, 1.0))])
def test_an_arm_that_people_moved_goes_on_from_where_they_left_it(limits: MotionLimits) -> None:
    """Compared with its last command, every chunk from there would be a jump, for ever."""
    rig = working(replace(ARM, limits=limits))
    rig.positions = at(0.0)[0]
    rig.brain.on_reply(chunk(rig.ask(), at(0.0)), rig.now_s)
    assert rig.tick().command is not None
    rig.brain.pause(rig.now_s)
    rig.tick(5)
    rig.positions = at(1.0)[0]
    rig.tick(5)
    rig.brain.resume(rig.now_s)
    rig.brain.on_reply(chunk(rig.ask(), at(0.0)), rig.now_s)
    assert rig.tick().command is None and rig.brain.refused["gate_jump"] == 1, "back to where it was"
    rig.brain.on_reply(chunk(rig.ask(), at(1.0)), rig.now_s)
    command = rig.tick().command
    assert command is not None and np.allclose(command, 1.0)


def test_a_displacement_after_a_stand_is_compared_with_no_other_one() -> None:
    rig = working(replace(CONFIG, gate=ChunkValidatorConfig(jump=REFUSE, max_jump=(0.2, 0.2))))
    for value in (0.15, -0.15):
        rig.brain.on_reply(chunk(rig.ask(), at(value, 1)), rig.now_s)
        assert rig.tick().command is not None, "refused once, it would be refused for ever"
        rig.tick(3)
