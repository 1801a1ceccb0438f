"""`rfm bench record`: what lies between two readings of counts that never fall."""

from __future__ import annotations

import math

from lab.benchmarks.record.report import late, ratios
from ros2_rfm_serving.types.histogram import TICK_BOUNDS_S, Histogram


def counted(*lates_s: float) -> Histogram:
    found = Histogram(TICK_BOUNDS_S)
    for late_s in lates_s:
        found.add(late_s)
    return found


def test_a_turn_is_what_came_in_it() -> None:
    turn = late(counted(0.2, 0.2), counted(0.2, 0.2, 0.001, 0.003, 0.03, 0.01), recorded=True)
    assert (turn.periods, round(turn.mean_ms, 6), turn.late_share) == (4, 11.0, 0.25)
    assert math.isnan(late(counted(0.2), counted(0.2), recorded=True).mean_ms)


def test_a_ratio_is_of_one_round() -> None:
    turns = [
        late(counted(), counted(one_s), recorded=bool(number % 2)) for number, one_s in enumerate((0.001, 0.002, 0.004, 0.004))
    ]
    assert [round(ratio, 6) for ratio in ratios(turns)["mean"]] == [2.0, 1.0]
