"""Figures that are far from what was planned, that scatter, or that come and go: all are believed, and none too soon."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.factory import parse_factory
from ros2_rfm_serving.profiles import COLUMNS, parse_profiles
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED, MOST_PACE, NetworkDelay
from ros2_rfm_serving.scheduler.estimation import ComponentTotals, RobotStatusSample, ServerStatusSample, SloCounts
from ros2_rfm_serving.scheduler.estimation.drift import IDLE_S, ServiceDriftEstimator
from ros2_rfm_serving.scheduler.estimation.hysteresis import EASED_AFTER_S, LONGEST_S, Hysteresis
from test.unit.scheduler.test_watch import FACTORY, PROFILE, Floor, placed

USUAL_S = 0.04
QUICK = settings(max_examples=10, deadline=None)


def served(floor: Floor, pace: Callable[[float], float], seed: int = 1) -> Callable[[], None]:
    """server_1 at a pace by the seconds since now, with lots that scatter by 4 %."""
    rng, began_s = random.Random(seed), floor.now_s

    def go() -> None:
        floor.service_s["server_1"] = USUAL_S * pace(floor.now_s - began_s) * rng.gauss(1.0, 0.04)

    return go


@given(pace=st.sampled_from([0.5, 1.3, 2.0, 3.0, 6.0, 9.5, 14.0, 50.0]), seed=st.integers(0, 10_000))
@QUICK
def test_the_slower_a_server_is_the_surer_it_is_not_as_planned(pace: float, seed: int) -> None:
    """Beyond about twice its profile lots scattered too much to be believed, and beyond ten times none counted."""
    floor = Floor()
    floor.change = served(floor, lambda s: pace, seed)
    assert floor.run(25.0).paces == {"server_1": pytest.approx(min(pace, MOST_PACE), rel=0.06)}


def test_one_batch_that_takes_a_hundred_times_as_long_is_none_of_its_pace() -> None:
    floor = Floor()
    floor.change = served(floor, lambda s: 100.0 if s % 20.0 < 1.0 else 1.0)
    assert floor.run(200.0) == AS_DECLARED and floor.watch.drift.implausible > 5


@pytest.mark.parametrize("period_s", [30.0, 60.0, 120.0])
def test_a_server_that_is_slow_now_and_then_is_planned_with_as_a_slow_one(period_s: float) -> None:
    """Every change of its pace was believed, with a plan in its wake, or none was."""
    floor = Floor()
    floor.change = served(floor, lambda s: 1.3 if s % period_s < period_s / 2 else 1.0)
    slow = sum(bool(floor.run(10.0).paces) for _ in range(90))
    assert slow >= 60 and len(floor.found) <= 13, (slow, [found.words for found in floor.found])
    floor.change = served(floor, lambda s: 1.0)
    assert floor.run(LONGEST_S + 60.0) == AS_DECLARED


@given(
    moves=st.lists(st.tuples(st.booleans(), st.floats(0.0, 2e3)), max_size=20),
    back_s=st.floats(1.0, 1e5),
)
@QUICK
def test_nothing_is_held_for_longer_than_the_longest(moves: list[tuple[bool, float]], back_s: float) -> None:
    hold, now_s = Hysteresis(), 1e6
    since_s = now_s
    assert not hold.lasts(now_s)
    for worse, passed_s in moves:
        now_s += passed_s
        since_s = now_s if worse else since_s
        hold.worsens(now_s) if worse else hold.eases()
        assert hold.lasts(now_s + EASED_AFTER_S - 1.0) or not worse
        assert not hold.lasts(now_s + LONGEST_S) and not hold.lasts(since_s - back_s), "nor by a clock that is set back"


def test_a_slow_server_that_nobody_asks_any_more_is_tried_again_and_each_time_later() -> None:
    """A plan had given it nothing to do, so that nothing was measured of it, and it was slow for ever."""
    drift, now_s, waits_s = ServiceDriftEstimator(PROFILE), 1e6, list[float]()
    drift.place({"server_1": placed("server_1")})
    word = Floor.ready("server_1")
    for _ in range(4):
        while not drift.paces()[0]:
            now_s += 1.0
            word = replace(word, replies=word.replies + 10, inference_s=word.inference_s + 30 * USUAL_S)
            drift.hear(word, now_s)
            drift.look(now_s)
        assert drift.paces()[0] == {"server_1": pytest.approx(3.0)}
        drift.place({"server_1": placed("server_1", size=1 if len(waits_s) % 2 else 4)})
        began_s = now_s
        while drift.paces()[0]:
            now_s += 1.0
            drift.look(now_s)
        drift.place({"server_1": placed("server_1")})
        waits_s.append(now_s - began_s)
    assert waits_s[0] == pytest.approx(IDLE_S, abs=2.0) and waits_s == sorted(waits_s) and waits_s[-1] < 4 * IDLE_S, waits_s


def slow(drift: ServiceDriftEstimator, word: ServerStatusSample, now_s: float, seconds: int) -> tuple[ServerStatusSample, float]:
    """server_1 works three times as slowly for so long."""
    for _ in range(seconds):
        now_s += 1.0
        word = replace(word, replies=word.replies + 10, inference_s=word.inference_s + 30 * USUAL_S)
        drift.hear(word, now_s)
        drift.look(now_s)
    return word, now_s


def test_a_slow_server_that_works_is_not_tried_again_because_its_batches_are_others() -> None:
    """It had become slow long ago, and nothing was measured of the other batches yet: it was as planned again at once."""
    drift = ServiceDriftEstimator(PROFILE)
    drift.place({"server_1": placed("server_1")})
    _, now_s = slow(drift, Floor.ready("server_1"), 1e6, round(IDLE_S) + 60)
    drift.place({"server_1": placed("server_1", size=1)})
    assert not drift.look(now_s + 1.0) and drift.paces()[0] == {"server_1": pytest.approx(3.0)}
    assert drift.look(now_s + IDLE_S) and drift.paces() == ({}, {})


def test_a_slow_server_whose_robots_have_nothing_to_do_stays_slow() -> None:
    """Each idle night it was as planned again, and its first robots of the morning were late."""
    drift = ServiceDriftEstimator(PROFILE)
    drift.place({"server_1": placed("server_1")}, frozenset({"server_1"}))
    _, now_s = slow(drift, Floor.ready("server_1"), 1e6, 60)
    assert not drift.look(now_s + 10 * IDLE_S) and drift.paces()[0] == {"server_1": pytest.approx(3.0)}
    drift.place({"server_1": placed("server_1", size=1)})
    assert not drift.look(now_s + 11 * IDLE_S - 1.0) and drift.look(now_s + 11 * IDLE_S)


def test_a_clock_that_is_set_back_makes_no_slow_server_quick() -> None:
    drift = ServiceDriftEstimator(PROFILE)
    drift.place({"server_1": placed("server_1")})
    _, now_s = slow(drift, Floor.ready("server_1"), 1e6, 60)
    back_s = now_s - 1e5
    assert not drift.look(back_s) and drift.paces()[0] == {"server_1": pytest.approx(3.0)}
    assert not drift.look(back_s + IDLE_S - 1.0) and drift.look(back_s + IDLE_S), "nor is it slow for ever"


# --- calls of System 2 ---


def calling(floor: Floor, ratio: float, *, given_up: float = 0.0) -> Callable[[], None]:
    """Three robots; each calls System 2 as often as that, and gives up a share of its calls."""
    owed = {f"carry_{i}": i / 3 for i in range(3)}

    def go() -> None:
        for name in owed:
            before = floor.robots.get(name)
            floor.drives(name, calls=0.0)
            owed[name] += 20 * ratio
            calls = int(owed[name])
            owed[name] -= calls
            answers = round(calls * (1 - given_up))
            then = before.asked["system2"] if before else ComponentTotals(0, 0.0)
            kept = before.kept.get("system2", SloCounts()) if before else SloCounts()
            word = floor.robots[name]
            asked = {**word.asked, "system2": ComponentTotals(then.answers + answers, then.round_trips_s + 1.0)}
            floor.robots[name] = replace(
                word, asked=asked, kept={"system2": SloCounts(kept.in_time + answers, kept.late + calls - answers)}
            )

    return go


RARE = 0.002
"""Calls per action: of 1.3 lots of two seconds one call."""


@pytest.mark.parametrize("times", [0.0, 0.5, 1.0, 2.0, 3.0])
def test_rare_calls_are_counted_until_they_are_enough(times: float) -> None:
    """Six lots in which nobody happened to call made it sure that nobody ever does, and twice as many calls never were sure."""
    floor = Floor(parse_factory(FACTORY.replace("0.1}", f"{RARE}}}")))
    floor.change = calling(floor, times * RARE)
    calls = floor.run(600.0).calls
    if times == 1.0:
        assert floor.watch.seen == AS_DECLARED and not floor.found
    else:
        assert calls == {"carry": {"system2": pytest.approx(max(times, 0.1) * RARE, rel=0.15)}} and len(floor.found) == 1


def test_hardly_any_call_is_not_none() -> None:
    """Figures had four digits behind the point, and a tenth of this ratio has none there."""
    floor = Floor(parse_factory(FACTORY.replace("0.1}", "0.0004}")))
    (pool,) = floor.watch.factors._tasks["carry"].calls.values()
    for _ in range(6):
        pool.add(40_000, 0.0, expected=16.0)
    assert pool.look(floor.now_s) and pool.factor.used == pytest.approx(0.00004)


def test_calls_that_are_given_up_are_asked_all_the_same() -> None:
    """Of a server of System 2 that is asked too much, answers said what it could do, and it stayed so."""
    floor = Floor()
    floor.change = calling(floor, 0.2, given_up=0.5)
    assert floor.run(60.0).calls == {"carry": {"system2": pytest.approx(0.2, rel=0.05)}}


# --- horizons ---


@pytest.mark.parametrize("times", [0.75, 2.0, 3.0])
def test_horizons_that_are_drawn_are_known_soon(times: float) -> None:
    """From one step to twice the mean: those of single robots scattered too much to be believed where they grew."""
    floor, rng = Floor(), random.Random(2)

    def go() -> None:
        for i in range(9):
            floor.drives(f"carry_{i}", cycle_s=times * 0.4 * rng.uniform(0.6, 1.4))

    floor.change = go
    assert floor.run(40.0).cycles_s == {"carry": pytest.approx(times * 0.4, rel=0.1)}


@pytest.mark.parametrize(("scatter", "within_s"), [(0.05, 25.0), (0.3, 130.0)])
@pytest.mark.parametrize("times", [0.75, 1.5])
def test_horizons_of_a_single_robot_are_known_soon(scatter: float, within_s: float, times: float) -> None:
    """Lots of many chunks were one in a quarter of a minute: three minutes and more until six were there."""
    floor, rng = Floor(), random.Random(3)
    word = RobotStatusSample(
        robot="carry_0", task="carry", server="server_1", streams=True, asked={"system1": ComponentTotals(0, 0.0)}
    )
    mean_s = 0.4

    def go() -> None:
        then = floor.robots.get("carry_0", word)
        asked = {"system1": ComponentTotals(then.asked["system1"].answers + 1, 0.0)}
        horizons_s = then.horizons_s + mean_s * rng.gauss(1.0, scatter)
        floor.robots["carry_0"] = replace(then, asked=asked, horizons=then.horizons + 1, horizons_s=horizons_s)

    floor.change = go
    floor.run(300.0)
    assert not floor.watch.seen.cycles_s
    mean_s *= times
    assert floor.run(within_s).cycles_s == {"carry": pytest.approx(mean_s, rel=0.15)}


# --- the way to servers ---


@given(mean_s=st.floats(0.0, 2.0), more_s=st.floats(0.0, 2.0))
@QUICK
def test_a_plan_leaves_room_for_the_tail_that_was_seen(mean_s: float, more_s: float) -> None:
    """Of ways that are bad now and then the mean may be next to nothing: their tail was planned with as if it were, too."""
    network = NetworkDelay(mean_s=mean_s, tail_s=mean_s + more_s).network
    assert network.at_s(99.0) == pytest.approx(mean_s + more_s, abs=1e-9)
    assert network.mean_s >= mean_s - 1e-9 and (network.round_trip_ms == 0.0 or network.mean_s == pytest.approx(mean_s))


def test_a_pace_that_changes_is_no_tail_of_the_network() -> None:
    """Percentiles of robots and of servers are of different spans: those of both paces say nothing of the way."""
    floor = Floor()

    def go() -> None:
        for i in range(3):
            floor.drives(f"carry_{i}")

    floor.change = go
    floor.run(60.0)
    task = floor.watch.factors._tasks["carry"]
    assert len(task.tail.means) > 5
    floor.service_s["server_1"] *= 1.5
    while not floor.found:
        floor.run(0.5)
    assert len(task.tail.means) == 0 and not task.tails.robots


TOGETHER = parse_profiles(
    f"""{",".join(COLUMNS)},arrivals
arms,GPU,continuous,1,6,57,57,60,70,80,fleet
arms,GPU,continuous,1,19,75,75,80,90,99,fleet
arms,GPU,continuous,1,38,122,122,130,150,170,fleet
arms,GPU,continuous,1,51,188,188,200,250,280,fleet
arms,GPU,continuous,1,6,52,52,53,54,55,periodic
arms,GPU,continuous,1,19,53,53,54,55,56,periodic
arms,GPU,continuous,1,38,100,100,110,120,130,periodic
arms,GPU,continuous,1,51,160,160,170,180,190,periodic
"""
)


def paced(rate: int, latency_s: float, company: float) -> dict[str, float]:
    """Of a server of actions whose rows go on step by step, after ten seconds: so many replies each, with so many rows at once."""
    drift = ServiceDriftEstimator(TOGETHER)
    drift.place({"server_1": replace(placed("server_1", "arms", 1), batching="continuous")})
    word = replace(Floor.ready("server_1"), model="arms", batch_size=1, mean_batch_size=company)
    for second in range(10):
        drift.hear(word, 1e6 + second)
        word = replace(word, replies=word.replies + rate, inference_s=word.inference_s + rate * latency_s)
    drift.look(1e6 + 10)
    return drift.paces()[0]


def test_robots_that_meet_or_never_do_make_no_server_slow_or_quick() -> None:
    """Six that ask together, as all do at the start, are answered in 125 ms, which the curve has for three times their rate: "1.5
    times its profile". Others, that ask by turns, always are alone, and it was 0.76."""
    assert paced(16, 0.125, 6.0) == {} == paced(18, 0.052, 1.0)


@pytest.mark.parametrize("times", [1.5, 2.0, 3.0, 9.0])
def test_a_server_that_is_slow_is_so_whether_robots_meet_or_not(times: float) -> None:
    """They ask again when they are answered, and so the less often."""
    for rate, latency_s, company in [(18, 0.125, 6.0), (6, 0.052, 1.0)]:
        found = paced(round(rate / times), times * latency_s, company)
        assert found == {"server_1": pytest.approx(min(times, MOST_PACE), rel=0.15)}


def test_a_server_that_is_quick_is_so() -> None:
    assert paced(18, 0.026, 1.0) == {"server_1": pytest.approx(0.5, rel=0.05)}
