"""A record says which row of which chunk moved the robot, or why none did, and that is so."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ros2_rfm_serving.robot import RobotConfig
from ros2_rfm_serving.robot.config import CommandType, Motion, Rung
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.types import PipelineConfig
from test.unit.audit.recordings import Recorder, all_records, recorded_world, run
from test.unit.robot.robot_world import NAMES, World
from test.unit.robot.robots import FAILING

WIDE = (1e6,) * (len(NAMES) - 2)


def told(world: World, recorder: Recorder) -> tuple[list[dict[str, Any]], dict[tuple[int, int, int], np.ndarray]]:
    """Its ticks, and the rows of its chunks by session epoch, episode and sequence."""
    recorder.journal.close(world.now_s, "")
    found = all_records(recorder.pages)
    events = [one["event"] for one in found if one["kind"] == "event"]
    replies = [one["reply"] for one in events if one["~"] == "ReplyReceived" and "chunk_robot" in one["reply"]]
    chunks = {
        tuple(reply["id"][name] for name in ("session_epoch", "episode", "sequence")): np.float32(reply["chunk_robot"]["rows"])
        for reply in replies
    }
    return [one for one in found if one["kind"] == "tick"], chunks


def row_of(why: dict[str, Any], chunks: dict[tuple[int, int, int], np.ndarray]) -> np.ndarray:
    chunk = why["chunk"]
    return chunks[chunk["session_epoch"], chunk["episode"], chunk["sequence"]][why["step"]]


@pytest.mark.parametrize(
    "more", [{}, {"replace_queue": False}, {"synchronous": True}, {"replace_queue": False, "execution_horizon": 6}]
)
def test_the_row_that_is_named_is_the_one_that_was_commanded(more: dict[str, Any]) -> None:
    world, recorder = recorded_world(replace(FAILING, **more))
    world.conditions.latency_s = 0.12
    run(world, recorder, 12)
    ticks, chunks = told(world, recorder)
    rows = [one for one in ticks if one["why"]["source"] == "step"]
    assert len(rows) > 60
    for one in rows:
        assert np.array_equal(row_of(one["why"], chunks), np.float32(one["command"]["rows"])), one["n"]
        assert one["why"]["chunk"]["server"] == "home" and one["why"]["chunk"]["model_hash"] == "hash"
    assert len({tuple(one["why"]["chunk"].values()) for one in rows}) > 5


def test_of_a_pipelined_chunk_it_says_what_it_began_and_ended_with() -> None:
    world, recorder = recorded_world(replace(FAILING, execution_horizon=2, pipelining=PipelineConfig(pp_generation=2)))
    run(world, recorder, 12)
    ticks, chunks = told(world, recorder)
    rows = [one for one in ticks if one["why"]["source"] == "step"]
    assert len(rows) > 100 and all(np.array_equal(row_of(one["why"], chunks), np.float32(one["command"]["rows"])) for one in rows)
    ended = [one["why"] for one in rows if "ended_with" in one["why"]["chunk"]]
    assert len(ended) > 0.9 * len(rows) and all(why["chunk"]["ended_with"] > why["chunk"]["sequence"] for why in ended)
    older_s = [why["oldest_staleness_s"] - why["staleness_s"] for why in ended]
    assert min(older_s) >= 0.0 and max(older_s) > 0.0, "the camera is slower than the frames"


def test_parts_of_the_way_name_the_row_that_they_lead_to() -> None:
    config = replace(FAILING, interpolation=4, command_type=CommandType.POSITION)
    world, recorder = recorded_world(config)
    run(world, recorder, 8)
    ticks, chunks = told(world, recorder)
    by = [one["why"]["source"] for one in ticks]
    assert by.count("partial_step") > 2 * by.count("step") > 0
    for before, one in itertools.pairwise(ticks):
        if one["why"]["source"] == "partial_step" and before["why"]["source"] in ("step", "partial_step"):
            assert one["why"]["step"] == before["why"]["step"] and one["why"]["chunk"] == before["why"]["chunk"]
    ends = [
        one
        for one, after in itertools.pairwise(ticks)
        if one["why"]["source"] == "partial_step" and after["why"]["source"] == "step"
    ]
    assert ends and all(np.array_equal(row_of(one["why"], chunks), np.float32(one["command"]["rows"])) for one in ends)


def test_what_the_limits_changed_is_said_with_what_was_wanted() -> None:
    narrow = MotionLimits(lower=(-0.3, -0.3, *(-w for w in WIDE)), upper=(0.3, 0.3, *WIDE), tolerance=5.0)
    world, recorder = recorded_world(replace(FAILING, limits=narrow))
    run(world, recorder, 6)
    ticks, chunks = told(world, recorder)
    rows = [one for one in ticks if one["why"]["source"] == "step"]
    changed = [one for one in rows if "limited_from" in one["why"]]
    assert 0 < len(changed) < len(rows)
    for one in rows:
        wanted = np.float32(one["why"].get("limited_from", one["command"])["rows"])
        assert np.array_equal(wanted, row_of(one["why"], chunks))
        assert ("limited_from" in one["why"]) == (not np.array_equal(wanted, np.float32(one["command"]["rows"])))


def reasons(world: World, recorder: Recorder) -> dict[str, set[str]]:
    """What commanded, by the reason."""
    found: dict[str, set[str]] = {}
    for one in told(world, recorder)[0]:
        why = one["why"]
        found.setdefault(why.get("reason", ""), set()).add(why.get("fallback", why["source"]))
    return found


LADDER = (Rung(Motion.REPEAT_LAST, 0.2), Rung(Motion.RAMP_DOWN, 0.3), Rung(Motion.ZERO))


def velocity(**more: Any) -> RobotConfig:
    return replace(FAILING, command_type=CommandType.VELOCITY, fallback=LADDER, **more)


def test_a_robot_without_an_action_says_why_and_by_which_rung() -> None:
    world, recorder = recorded_world(velocity())
    run(world, recorder, 3)
    world.conditions.latency_s = 3.0
    run(world, recorder, 4)
    rungs = set().union(*(by for reason, by in reasons(world, recorder).items() if reason.startswith("no action for")))
    assert rungs >= {"repeat_last", "ramp_down", "zero"}


def test_who_stopped_it_is_said() -> None:
    world, recorder = recorded_world(velocity())
    run(world, recorder, 3)
    world.brain.pause(world.now_s)
    run(world, recorder, 1)
    world.brain.resume(world.now_s)
    run(world, recorder, 2)
    world.conditions.readings = "none"
    run(world, recorder, 1)
    world.conditions.readings = "fresh"
    run(world, recorder, 2)
    world.brain.abort(world.now_s)
    run(world, recorder, 1)
    found = reasons(world, recorder)
    assert "repeat_last" in found["paused by a person"] and found["no state in time"] >= {"stop"}
    assert "repeat_last" in found["the task is stopping"]
