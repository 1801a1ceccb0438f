"""Explanations of a recording whose processes were killed and started again at random, beside the log of who was alive."""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from functools import cache
from typing import Any

import pytest

from ros2_rfm_serving.audit.explain.explain import explain, window
from ros2_rfm_serving.audit.explain.explanation import Explanation
from ros2_rfm_serving.audit.explain.moments import LOOKS_BACK_S
from ros2_rfm_serving.audit.log import AuditLog
from ros2_rfm_serving.audit.runs import QUIET_S
from ros2_rfm_serving.errors import ConfigurationError
from test.unit.audit.killed import STEP_S, KilledFactory, Life, Truth
from test.unit.audit.story import EPOCH_S

SECONDS = 45.0
BEGUN_S = 1.3
"""Within this a process is recorded from its start on."""
MOMENTS = 25


@cache
def lived(seed: int) -> KilledFactory:
    factory = KilledFactory(seed)
    factory.run(SECONDS)
    return factory


def moments(truth: Truth, seed: int) -> list[float]:
    """Random ones, most of them within ten seconds of the end of a process."""
    rng, ends = random.Random(seed), [life.died_s for life in truth.lives if life.died_s < math.inf]
    drawn = [rng.choice([*ends, 0.0]) + rng.uniform(0.0, 10.0) for _ in range(MOMENTS)]
    return [at_s for at_s in drawn if 0.0 < at_s < SECONDS]


@pytest.mark.parametrize("seed", range(4))
def test_an_explanation_agrees_with_who_was_alive(seed: int) -> None:
    factory, seen = lived(seed), Counter[str]()
    for at_s in moments(factory.truth, seed):
        log = AuditLog(factory.pages, [window(EPOCH_S + at_s)])
        for robot in log.robots:
            try:
                found = explain(log, robot, EPOCH_S + at_s)
            except ConfigurationError as error:
                is_refused_rightly(factory.truth, robot, at_s, str(error))
                seen["refused"] += 1
                continue
            check_presence(found, factory.truth, at_s, seen)
            check_period(found, factory.truth, robot, seen)
            check_headline(found, factory.truth, robot, at_s, seen)
            check_schedule(found, factory.truth, robot, seen)
            check_server(found, factory.truth, at_s, seen)
    assert min(seen[name] for name in ("running", "without an end", "scheduler known", "same process")) > 5, seen


def is_refused_rightly(truth: Truth, robot: str, at_s: float, words: str) -> None:
    lives = [life for life in truth.of(f"robot/{robot}") if life.born_s <= at_s]
    recorded = [life for life in lives if life.begins_s <= at_s]
    assert not any(life.is_alive(at_s) and at_s - life.born_s > BEGUN_S for life in lives), words
    assert not recorded or at_s - recorded[-1].died_s > LOOKS_BACK_S - QUIET_S or at_s - lives[-1].born_s < BEGUN_S, words
    assert "before" in words or "after" in words


def check_presence(found: Explanation, truth: Truth, at_s: float, seen: Counter[str]) -> None:
    """What is said of every process."""
    for writer, fact in part(found, "processes")["presence"].items():
        presence, lives = fact["presence"], truth.of(writer)
        alive = next((life for life in lives if life.is_alive(at_s)), None)
        seen[presence] += 1
        if presence == "running":
            assert alive is not None and alive.begins_s <= at_s, (writer, at_s, fact)
        elif presence == "without an end":
            end_s = fact["ends_s"] - EPOCH_S
            gone = of_chain(lives, fact)
            assert gone.killed or gone.died_s > SECONDS, (writer, at_s, fact)
            assert end_s - STEP_S <= min(gone.died_s, SECONDS) <= end_s + QUIET_S, (writer, at_s, fact)
            assert not (fact["certain"] and gone.is_alive(at_s)), (writer, at_s, fact)
            assert f"its records end {words_of(at_s - end_s)} before" in fact["text"] and ", without an end" in fact["text"]
        elif presence == "ended":
            gone = of_chain(lives, fact)
            assert not gone.killed and gone.died_s <= at_s and abs(fact["ends_s"] - EPOCH_S - gone.died_s) < STEP_S, (writer, fact)
        else:
            assert presence == "not recorded" and all(life.begins_s > at_s - STEP_S for life in lives), (writer, at_s, fact)
        if alive is not None and presence not in ("running", "not recorded"):
            young = at_s - alive.born_s < BEGUN_S or alive.begins_s > at_s
            assert young or (presence == "without an end" and not fact["certain"]), (writer, at_s, fact)


def of_chain(lives: list[Life], fact: dict[str, Any]) -> Life:
    """The process that wrote a chain, by the time at which that began."""
    return min(lives, key=lambda life: abs(EPOCH_S + life.begins_s - fact["begins_s"]))


def words_of(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def check_period(found: Explanation, truth: Truth, robot: str, seen: Counter[str]) -> None:
    """The state is of the process that the control period is of."""
    stamp_s = found.stamp_s - EPOCH_S
    states = {round(at_s, 3): state for at_s, state in truth.states[robot]}
    state = part(found, "robot").get("state")
    assert state in (None, states[round(stamp_s, 3)])
    seen["state known"] += state is not None


def check_headline(found: Explanation, truth: Truth, robot: str, at_s: float, seen: Counter[str]) -> None:
    dead = not any(life.is_alive(at_s) for life in truth.of(f"robot/{robot}"))
    if dead and at_s - (found.stamp_s - EPOCH_S) > 1.0:
        assert "its records end" in found.headline and "its last control period" in found.headline
        seen["headline of a dead robot"] += 1


def check_schedule(found: Explanation, truth: Truth, robot: str, seen: Counter[str]) -> None:
    """It is named by scheduler and epoch, and the reason is of that scheduler's plan."""
    stamp_s = round(found.stamp_s - EPOCH_S, 3)
    scheduler, epoch = next(one[1:] for one in truth.followed[robot] if round(one[0], 3) == stamp_s)
    facts = part(found, "schedule")
    if not facts["known"]:
        return
    assert (facts["scheduler"], facts["epoch"]) == (scheduler, epoch), (facts, scheduler, epoch)
    assert f"epoch {epoch} of scheduler {scheduler:x}" in facts["said"]
    if "reason" in facts:
        assert facts["reason"] == truth.reasons[scheduler, epoch]
        seen["scheduler known"] += 1


def check_server(found: Explanation, truth: Truth, at_s: float, seen: Counter[str]) -> None:
    """Its state is what the process that the moment belongs to has said of itself, and no other one of that name."""
    facts = part(found, "server")
    if "transition" not in facts:
        return
    process = of_chain(truth.of(f"server/{facts['server']}"), facts["process"])
    assert facts["transition"]["reason"] == f"process {process.number} has loaded", (at_s, facts)
    seen["same process"] += 1


def part(found: Explanation, name: str) -> dict[str, Any]:
    facts: dict[str, Any] = found.as_json()[name]
    return facts


def test_what_is_certain_although_pages_were_lost_is_true() -> None:
    """A disk is full four times: what a lost record may have said is not certain, and what is certain is true."""
    seen = Counter[str]()
    for seed in range(4):
        explain_lossy(seed, seen)
    assert seen["certain"] > 100 and seen["uncertain"] > 5, seen


def explain_lossy(seed: int, seen: Counter[str]) -> None:
    """At moments of the whole time, many of them long after the last page of a robot."""
    factory, rng = lived(seed), random.Random(seed)
    gone = {begin + number for begin in rng.sample(range(len(factory.pages)), 4) for number in range(12)}
    pages = [page for number, page in enumerate(factory.pages) if number not in gone]
    for at_s in [rng.uniform(2.0, SECONDS) for _ in range(2 * MOMENTS)]:
        log = AuditLog(pages, [window(EPOCH_S + at_s)])
        for robot in log.robots:
            with contextlib.suppress(ConfigurationError):
                check_certain(explain(log, robot, EPOCH_S + at_s), factory.truth, robot, at_s, seen)


def check_certain(found: Explanation, truth: Truth, robot: str, at_s: float, seen: Counter[str]) -> None:
    stamp_s = round(found.stamp_s - EPOCH_S, 3)
    state, schedule = part(found, "robot"), part(found, "schedule")
    seen["certain" if state["certain"] else "uncertain"] += 1
    if state["certain"] and state.get("state") is not None:
        assert state["state"] == {round(one[0], 3): one[1] for one in truth.states[robot]}[stamp_s], (at_s, found.headline)
    if schedule["known"] and schedule["certain"]:
        followed = next(one[1:] for one in truth.followed[robot] if round(one[0], 3) == stamp_s)
        assert (schedule["scheduler"], schedule["epoch"]) == followed, (at_s, schedule)
    for writer, fact in part(found, "processes")["presence"].items():
        if fact["presence"] == "running":
            assert any(life.is_alive(at_s) for life in truth.of(writer)), (writer, at_s, fact)
