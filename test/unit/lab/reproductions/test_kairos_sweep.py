"""The sweep over horizons, and what is chosen by it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from lab.reproductions.files import write_rows
from lab.reproductions.kairos.recorded import load, named
from lab.reproductions.kairos.sweep import (
    better_static,
    chosen,
    difference_interval,
    pooled,
    recording,
    rows_of,
    value_of,
    with_whole_chunks,
)
from lab.reproductions.kairos.traces import write_traces
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.inputs import write_text
from test.unit.lab.reproductions.recordings import PUSH, SWEEP, TRACE, WORKLOAD, cell, recorded


def test_a_static_horizon_beats_a_policy_where_it_succeeds_significantly_more_often() -> None:
    assert better_static(SWEEP, "confidence") == [] == better_static(SWEEP, "curvature"), "two of a hundred are no difference"
    worse = [replace(c, successes=c.successes - 10) if c.policy == "confidence" else c for c in SWEEP]
    assert better_static(worse, "confidence") == [4, 8], "16 executes whole chunks, as a threshold does that nothing exceeds"
    with pytest.raises(KeyError):
        better_static(SWEEP, "unheard_of")


def test_the_interval_of_a_difference() -> None:
    low, high = difference_interval((56, 70), (48, 80))
    assert (low, high) == pytest.approx((0.0524, 0.3339), abs=5e-4), "Newcombe 1998, method 10"
    low, high = difference_interval((40, 40), (40, 40))
    assert low < 0 < high


def test_horizons_are_the_longest_that_keep_up_and_one_episode_decides_nothing() -> None:
    alone = replace(WORKLOAD, tasks=("push",))
    horizons = {name: value_of(by_task["push"]) for name, by_task in chosen(alone, SWEEP).items()}
    assert horizons == {
        **{"static": 8, "confidence": 0.3, "curvature": 0.3, "static_best": 8, "static_one": 8, "confidence_one": 0.3}
    }
    lost = [replace(c, successes=97) if (c.policy, c.value) == ("static", 8) else c for c in SWEEP]
    assert value_of(chosen(alone, lost)["static_best"]["push"]) == 4, "by the paper's rule one of a hundred halves the horizon"
    assert value_of(chosen(alone, lost)["static"]["push"]) == 8


@pytest.mark.parametrize("policy", ["static", "confidence"])
def test_of_few_episodes_one_failure_more_decides_nothing_and_two_do(policy: str) -> None:
    best = replace(cell("static", 8, 10, 7.5), episodes=10)
    one, two = (replace(cell(policy, 9, successes, 9.0), episodes=10) for successes in (9, 8))
    assert one.keeps_up_with(best) and not two.keeps_up_with(best)


def test_of_thresholds_of_which_none_keeps_up_the_best_is_chosen() -> None:
    cells = [cell("static", 8, 100, 7.5), cell("static", 16, 50, 14.0)]
    cells += [cell("confidence", 0.1, 60, 6.0), cell("confidence", 0.3, 70, 9.0)]
    horizons = chosen(replace(WORKLOAD, tasks=("push",), thresholds={"confidence": (0.1, 0.3)}), cells)
    assert value_of(horizons["confidence"]["push"]) == 0.3


def test_tasks_are_pooled_by_rounds() -> None:
    (both,) = pooled([cell("static", 8, 90, 7.0), replace(cell("static", 8, 100, 9.0, "reach"), rounds=300, steps=2700)])
    assert both.success == 0.95 and both.horizon == 8.5 and both.interval[0] < 0.95 < both.interval[1]


def test_the_same_scenes_stand_under_every_name() -> None:
    horizons = chosen(replace(WORKLOAD, tasks=("push",)), SWEEP)
    values = {(h.policy, value_of(h)) for by_task in horizons.values() for h in by_task.values()}
    traces = [replace(TRACE, policy=policy, value=value, seed=seed) for policy, value in values for seed in (5, 6)]
    fewer = [trace for trace in traces if (trace.policy, trace.seed) != ("confidence", 6)]
    by_name = named(fewer, horizons, Path("traces.csv"))
    assert all(by_scene.keys() == {("push", 5)} for by_scene in by_name.values())
    assert {trace.policy for trace in by_name["confidence"].values()} == {"confidence"}
    with pytest.raises(ConfigurationError, match="no trace of 'push' with confidence"):
        named([trace for trace in traces if trace.policy != "confidence"], horizons, Path("traces.csv"))


def test_a_threshold_that_nothing_exceeds_is_among_the_choices() -> None:
    alone, cells = replace(WORKLOAD, tasks=("push",)), [replace(c, successes=98) if c.value == 16 else c for c in SWEEP]
    horizons = {name: by_task["push"] for name, by_task in chosen(alone, cells).items()}
    assert value_of(horizons["static"]) == 16 and horizons["static"].policy == "static"
    assert [value_of(horizons[name]) for name in ("confidence", "curvature", "confidence_one")] == [math.inf] * 3
    assert recording(alone, horizons["confidence"]) == horizons["static"], "its traces are those of whole chunks"
    assert recording(alone, alone.horizon("confidence", 0.8)) == alone.horizon("confidence", 0.8)
    whole = with_whole_chunks(cells)
    assert whole == with_whole_chunks(whole) and {c.policy for c in whole if c.value == math.inf} == {"confidence", "curvature"}


def test_whole_chunks_are_replayed_from_the_longest_static_horizon(tmp_path: Path) -> None:
    alone = replace(WORKLOAD, tasks=("push",), thresholds={"confidence": (0.1,)})
    cells = [cell("static", 4, 98, 4.0), cell("static", 16, 98, 14.0), cell("confidence", 0.1, 99, 6.0)]
    write_rows(tmp_path / "sweep.csv", rows_of(cells))
    write_text(tmp_path / "traces.csv", write_traces([replace(trace, value=16.0) for trace in PUSH]))
    held = load(alone, tmp_path)
    assert held.traces["confidence"] == held.traces["static"] and len(held.traces["static"]) == len(PUSH)
    assert math.inf in {c.value for c in held.cells}


def test_only_some_scenes_are_replayed() -> None:
    failed = {**recorded().traces["confidence"], ("push", 0): replace(PUSH[0], success=False)}
    held = replace(recorded(), traces={**recorded().traces, "confidence": failed})
    assert set(held.only(succeeding=True).traces["static"]) == set(held.traces["static"]) - {("push", 0)}
    assert not held.only(without="push").traces["static"] and held.only().traces == held.traces
