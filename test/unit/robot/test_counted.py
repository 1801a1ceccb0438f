"""What a robot counts of itself, for whoever watches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ros2_rfm_serving.robot.config import Motion, Rung
from test.unit.fakes import chunk
from test.unit.robot.robots import CONFIG, PERIOD_S, working


def test_every_answer_and_every_executed_action_is_counted() -> None:
    rig = working()
    before = sum(rig.brain.figures["system1"].round_trips.counts)
    stale = sum(rig.brain.stalenesses.counts)
    request, asked_s = rig.ask(), rig.now_s
    rig.tick()
    rig.brain.on_reply(chunk(request), rig.now_s)
    trips = rig.brain.figures["system1"].round_trips
    assert sum(trips.counts) == before + 1 and trips.sum >= rig.now_s - asked_s
    rig.brain.on_reply(chunk(request), rig.now_s)  # once more: it answers nothing
    assert sum(trips.counts) == before + 1
    executed = sum(rig.tick().command is not None for _ in range(3))
    assert executed and sum(rig.brain.stalenesses.counts) >= stale + executed
    assert rig.brain.stalenesses.sum > executed * PERIOD_S


def test_every_rung_that_is_reached_is_counted_once_each_time() -> None:
    ladder = (Rung(Motion.REPEAT_LAST, 2 * PERIOD_S), Rung(Motion.ZERO))
    rig = working(replace(CONFIG, fallback=ladder))
    rig.brain.on_reply(chunk(rig.ask()), rig.now_s)
    rig.tick(30)  # nobody answers any more
    assert rig.brain.fallbacks == {"repeat_last": 1, "zero": 1}
    rig.brain.prepared(replace(rig.brain.config, fallback=(Rung(Motion.ZERO),)))()
    assert rig.brain.fallbacks["repeat_last"] == 1, "another ladder counts on"


@pytest.mark.parametrize("late_s", [0.0, 0.3])
def test_an_answer_beyond_the_slo_is_counted_too(late_s: float) -> None:
    rig = working()
    request = rig.ask()
    rig.now_s += late_s
    before = rig.brain.figures["system1"].round_trips.sum
    rig.brain.on_reply(chunk(request), rig.now_s)
    assert rig.brain.figures["system1"].round_trips.sum - before >= late_s
