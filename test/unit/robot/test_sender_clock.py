"""When a reading was taken, by stamps of any clock that a sender really has, over a network as networks are."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.robot.sender_clock import SenderClock

MAX_AGE_S = 0.5
BEGUN_S = 1000.0
"""On our clock."""


@dataclass(frozen=True)
class Reading:
    stamp_s: float
    taken_s: float
    """When it was really taken, by our clock."""
    now_s: float
    """When it arrives."""
    is_outlier: bool = False


@dataclass(frozen=True)
class Sender:
    """A sensor with a clock of its own, behind a network."""

    rate_hz: float = 50.0
    stamp_s: float = 5.0
    """Of the first reading."""
    pace: float = 1.0
    changes: tuple[tuple[float, float, float], ...] = ()
    """(when, by how much the clock is set, pace from then on); a pause is a pace of 0."""
    quantum_s: float = 0.0
    """Of the stamps."""
    delay_s: float = 0.004
    jitter_s: float = 0.004
    loss: float = 0.0
    outliers: float = 0.0
    """Share of stamps that are out of line."""
    outages: tuple[tuple[float, float], ...] = ()
    """(from, to): what is sent meanwhile is delivered at the end, in one go."""
    late: float = 0.0
    """Share of readings that are delivered a second late."""
    in_order: bool = True
    seconds: float = 20.0
    seed: int = 0

    def clock(self, seconds: float) -> tuple[float, float]:
        """(what it shows, its pace)"""
        stamp_s, since_s, pace = self.stamp_s, 0.0, self.pace
        for when_s, by_s, next_pace in self.changes:
            if seconds < when_s:
                break
            stamp_s, since_s, pace = stamp_s + (when_s - since_s) * pace + by_s, when_s, next_pace
        return stamp_s + (seconds - since_s) * pace, pace

    def readings(self) -> list[Reading]:
        """In the order of their arrival."""
        rng, sent, last_s = random.Random(self.seed), [], 0.0
        for index in range(round(self.seconds * self.rate_hz)):
            at_s = index / self.rate_hz
            stamp_s, pace = self.clock(at_s)
            if self.quantum_s:
                stamp_s = math.floor(stamp_s / self.quantum_s + 1e-6) * self.quantum_s
            is_outlier = rng.random() < self.outliers
            stamp_s += rng.choice((-1.0, 1.0)) * rng.uniform(1.0, 100.0) if is_outlier else 0.0
            arrives_s = at_s + self.delay_s + rng.uniform(0.0, self.jitter_s) + (1.0 if rng.random() < self.late else 0.0)
            arrives_s = max([arrives_s, *(end_s for begin_s, end_s in self.outages if begin_s <= arrives_s < end_s)])
            arrives_s = last_s = max(arrives_s, last_s) if self.in_order else arrives_s
            if rng.random() >= self.loss and pace > 0.0:
                sent.append(Reading(stamp_s, BEGUN_S + at_s, BEGUN_S + arrives_s, is_outlier))
        ends_s = BEGUN_S + self.seconds
        return sorted((reading for reading in sent if reading.now_s < ends_s), key=lambda reading: reading.now_s)


@dataclass
class Ages:
    """Of the readings of a sender that are not out of line: as they were found, and as they are."""

    sender: Sender
    now_s: list[float] = field(default_factory=list)
    found_s: list[float] = field(default_factory=list)
    real_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock, self.readings = SenderClock(MAX_AGE_S), self.sender.readings()
        for reading in self.readings:
            age_s = reading.now_s - clock.taken_s(reading.stamp_s, reading.now_s)
            assert age_s >= 0.0
            if not reading.is_outlier:
                self.now_s.append(reading.now_s - BEGUN_S)
                self.found_s.append(age_s)
                self.real_s.append(reading.now_s - reading.taken_s - self.sender.delay_s)

    @property
    def settles_s(self) -> float:
        """A change, the beginning among them, is over after so long."""
        sender = self.sender
        return max(MAX_AGE_S + 0.15, 6.0 / sender.rate_hz) + sender.delay_s + 2.0 * sender.jitter_s

    def settled_spans(self) -> list[bool]:
        """Per reading: no change is under way. An outlier during a change prolongs it."""
        sender = self.sender
        changed_s = [0.0, *(when_s for when_s, _, _ in sender.changes), *(end_s for _, end_s in sender.outages)]
        until_s, spans = [when_s + self.settles_s for when_s in changed_s], []
        for reading in self.readings:
            now_s = reading.now_s - BEGUN_S
            under_way = [when_s <= now_s < end_s for when_s, end_s in zip(changed_s, until_s, strict=True)]
            if reading.is_outlier:
                until_s = [now_s + self.settles_s if now else end_s for now, end_s in zip(under_way, until_s, strict=True)]
            else:
                spans.append(not any(under_way))
        return spans

    def refused_fresh(self) -> list[float]:
        """When readings were refused that were not old."""
        pairs = zip(self.now_s, self.found_s, self.real_s, strict=True)
        return [now_s for now_s, found_s, real_s in pairs if found_s > MAX_AGE_S >= real_s]

    def check(self) -> None:
        tolerance_s = 0.1 + 2.0 * self.sender.jitter_s + self.sender.quantum_s / self.sender.pace
        found = zip(self.settled_spans(), self.now_s, self.found_s, self.real_s, strict=True)
        for settled, now_s, found_s, real_s in found:
            if settled:
                problem = f"{now_s:.2f} s: found {found_s:.3f} s, really {real_s:.3f} s"
                assert found_s == pytest.approx(real_s, abs=tolerance_s), problem


def ages(sender: Sender) -> Ages:
    found = Ages(sender)
    found.check()
    return found


rates = st.sampled_from([8.0, 10.0, 15.0, 30.0, 50.0, 100.0, 200.0])
paces = st.one_of(st.floats(0.3, 0.99), st.floats(0.99, 1.01), st.just(1.0), st.floats(1.01, 3.0))
first_stamps = st.sampled_from([0.001, 5.0, 1.7e9, -3600.0, 2.0e9])
steps = st.one_of(st.floats(-1e6, -0.05), st.floats(-2.0, -0.05), st.floats(0.05, 2.0), st.floats(0.05, 1e6))
networks = st.fixed_dictionaries(
    {
        "delay_s": st.floats(0.0, 0.2),
        "jitter_s": st.floats(0.0, 0.03),
        "loss": st.sampled_from([0.0, 0.02, 0.1]),
        "seed": st.integers(0, 10**6),
    }
)
examples = settings(max_examples=30, deadline=None, derandomize=True)


@st.composite
def senders(draw: st.DrawFn, *, changes: int = 0) -> Sender:
    pace = draw(paces)
    sender = Sender(rate_hz=draw(rates), stamp_s=draw(first_stamps), pace=pace, **draw(networks))
    made, at_s = [], 0.0
    for _ in range(changes):
        at_s += draw(st.floats(4.0, 6.0))
        kind = draw(st.sampled_from(["set", "pace", "reset", "pause"]))
        if kind == "pause":
            made.append((at_s, 0.0, 0.0))
            at_s += draw(st.floats(0.5, 3.0))
        elif kind == "pace":
            pace = draw(paces)
        by_s = draw(steps) if kind == "set" else 0.0
        made.append((at_s, by_s, pace))
        if kind == "reset":
            shown_s = replace(sender, changes=tuple(made)).clock(at_s)[0]
            made[-1] = (at_s, -shown_s + 0.001, pace)
    return replace(sender, changes=tuple(made), seconds=at_s + 5.0)


# --- property: ages hold ------------------------------------------------------------------------------------------------------


@examples
@given(senders())
def test_ages_are_right_whatever_the_pace_and_the_network(sender: Sender) -> None:
    """And a reading that is not old is never refused after the first moment."""
    found = ages(sender)
    assert all(now_s < found.settles_s for now_s in found.refused_fresh())


@examples
@given(senders(changes=2))
def test_a_clock_that_changes_costs_no_more_than_the_age_that_is_allowed(sender: Sender) -> None:
    """Set forward or back, another pace, begun anew, paused: readings are refused no longer than that, and then ages are right."""
    ages(replace(sender, jitter_s=min(sender.jitter_s, 0.01)))


@examples
@given(senders(), st.floats(0.0, 0.04))
def test_a_stamp_out_of_line_costs_its_own_reading_alone(sender: Sender, share: float) -> None:
    ages(replace(sender, outliers=share, jitter_s=min(sender.jitter_s, 0.01)))


@examples
@given(senders(), st.floats(0.01, 0.05))
def test_readings_that_a_network_delivers_late_are_found_old(sender: Sender, share: float) -> None:
    found = ages(replace(sender, late=share, in_order=False))
    spans = found.settled_spans()
    late = [
        found_s for settled, found_s, real_s in zip(spans, found.found_s, found.real_s, strict=True) if settled and real_s > 0.95
    ]
    assert all(found_s > MAX_AGE_S for found_s in late)


@examples
@given(senders(), st.floats(0.3, 3.0))
def test_a_backlog_is_as_old_as_it_is(sender: Sender, seconds: float) -> None:
    """All that an outage held back comes at its end, in one go, and what follows is fresh."""
    found = Ages(replace(sender, outages=((5.0, 5.0 + seconds),), seconds=10.0 + seconds, jitter_s=min(sender.jitter_s, 0.01)))
    found.check()
    held = [(found_s, real_s) for found_s, real_s in zip(found.found_s, found.real_s, strict=True) if real_s > 0.2]
    assert all(found_s == pytest.approx(real_s, abs=0.12) for found_s, real_s in held)


# --- single cases -------------------------------------------------------------------------------------------------------------


def found_ages(pairs: list[tuple[float, float]]) -> list[float]:
    """Of readings (stamp, arrival), each when it arrives."""
    clock = SenderClock(MAX_AGE_S)
    return [round(now_s - clock.taken_s(stamp_s, now_s), 6) for stamp_s, now_s in pairs]


@pytest.mark.parametrize("stamp_s", [0.0, math.nan, math.inf])
def test_without_a_stamp_the_arrival_counts(stamp_s: float) -> None:
    assert found_ages([(stamp_s, now_s) for now_s in (1.0, 2.0, 3.0)]) == [0.0, 0.0, 0.0]


def test_stamps_that_begin_after_zeros_are_used() -> None:
    """A node that waits for `/clock` stamps with zero until it comes."""
    zeros = [(0.0, t) for t in np.arange(0.0, 1.0, 0.05)]
    assert max(found_ages([*zeros, *((40.0 + t, t) for t in np.arange(1.0, 3.0, 0.05))])) < 0.01


def test_a_frame_that_is_repeated_grows_old() -> None:
    good = [(7.0 + t, t) for t in (0.0, 0.1, 0.2)]
    assert found_ages([*good, (7.2, 0.3), (7.2, 1.2)])[-2:] == pytest.approx([0.1, 1.0], abs=1e-3)


def test_frames_that_go_round_grow_old() -> None:
    frames = [(7.0 + 0.02 * (i % 20), 0.02 * i) for i in range(500)]
    assert found_ages(frames)[-1] > 9.0


def test_what_piled_up_is_as_old_as_it_is() -> None:
    assert found_ages([(1.0, 1.0), (1.1, 1.1), (1.2, 2.2)])[-1] == pytest.approx(1.0, abs=1e-2)


def test_the_first_delivery_may_have_been_slow() -> None:
    assert found_ages([(1.0, 1.4), (1.1, 1.1), (1.2, 1.25)])[-1] == pytest.approx(0.05, abs=1e-2)


@pytest.mark.parametrize("quantum_s", [0.01, 0.02, 0.1])
def test_stamps_in_steps_are_wrong_by_a_step_at_most(quantum_s: float) -> None:
    ages(Sender(quantum_s=quantum_s))
    ages(Sender(quantum_s=quantum_s, pace=0.6, rate_hz=30.0))


@pytest.mark.parametrize("late_by_s", [0.8, 1.2])
def test_a_crowded_network_is_no_clock_that_was_set(late_by_s: float) -> None:
    """Delays of another length each, for seconds: the clock is still the same, and every one of these readings is old."""
    rng = random.Random(1)
    sent = [
        (t, t + (late_by_s + rng.uniform(0.0, 0.7) if 5.0 < t < 8.0 else rng.uniform(0.0, 0.01))) for t in np.arange(0, 12, 0.02)
    ]
    arrivals = sorted(sent, key=lambda one: one[1])
    clock = SenderClock(MAX_AGE_S)
    for taken_s, now_s in arrivals:
        assert now_s - clock.taken_s(1e6 + taken_s, now_s) == pytest.approx(now_s - taken_s, abs=0.05)


def test_a_queue_that_grows_before_a_device_is_found_until_it_looks_like_another_pace() -> None:
    """Its stamps come more slowly, each as far from the last as before: the readings grow old, up to what is allowed."""
    clock = SenderClock(MAX_AGE_S)
    for t in np.arange(0.0, 6.5, 0.02):
        now_s = t + 0.5 * max(0.0, t - 5.0)
        age_s = now_s - clock.taken_s(1e6 + t, now_s)
        assert t > 6.2 or age_s == pytest.approx(now_s - t, abs=0.05)


def test_a_real_time_factor_that_wanders_costs_no_reading() -> None:
    """As of a simulator whose load changes all the time."""
    rng, stamp_s, factor, clock = random.Random(3), 0.0, 0.8, SenderClock(MAX_AGE_S)
    for index in range(60 * 50):
        factor = min(1.0, max(0.4, factor + rng.uniform(-0.04, 0.04)))
        stamp_s += 0.02 * factor
        now_s = 0.02 * index + rng.uniform(0.0, 0.005)
        assert now_s - clock.taken_s(1.0 + stamp_s, now_s) < MAX_AGE_S


def test_pace_and_offset_are_known() -> None:
    clock = SenderClock(MAX_AGE_S)
    assert not clock.is_known and math.isnan(clock.offset_s(0.0))
    for reading in Sender(pace=0.6, stamp_s=5.0).readings():
        clock.taken_s(reading.stamp_s, reading.now_s)
    assert clock.pace == pytest.approx(0.6, abs=0.005)
    assert clock.offset_s(BEGUN_S + 20.0) == pytest.approx(5.0 + 12.0 - 1020.0, abs=0.05)
    assert clock.num_changes == 0


def readings_with_outliers(
    rate_hz: float, share: float, by_s: float, *, set_back_s: float = 0.0
) -> list[tuple[float, float, bool]]:
    """(stamp, arrival, is out of line) for 40 s; the first stamp is out of line; the clock is set back after 20 s."""
    rng, made = random.Random(5), []
    for index in range(round(40.0 * rate_hz)):
        t = index / rate_hz
        is_outlier = index == 0 or rng.random() < share
        out_s = (by_s or rng.uniform(1.0, 100.0)) if is_outlier else 0.0
        made.append((1e6 + t + out_s - (set_back_s if t >= 20.0 else 0.0), BEGUN_S + t + rng.uniform(0.0, 0.003), is_outlier))
    return made


@pytest.mark.parametrize("rate_hz", [30.0, 200.0])
@pytest.mark.parametrize(("share", "by_s"), [(0.0, 1e5), (0.02, 5.0), (0.1, 5.0), (0.1, 0.7), (0.2, 0.0)])
def test_stamps_that_are_ahead_again_and_again_cost_no_more_than_themselves(rate_hz: float, share: float, by_s: float) -> None:
    """A driver stamps some readings, the first among them, by another clock: always as far ahead, or each by another amount."""
    clock, refused, num_outliers = SenderClock(MAX_AGE_S), 0, 0
    for stamp_s, now_s, is_outlier in readings_with_outliers(rate_hz, share, by_s):
        is_old = now_s - clock.taken_s(stamp_s, now_s) > MAX_AGE_S
        num_outliers += is_outlier
        refused += is_old and not is_outlier
    assert refused <= max(2, 0.3 * num_outliers)


@pytest.mark.parametrize("rate_hz", [30.0, 200.0])
@pytest.mark.parametrize("share", [0.02, 0.1])
@pytest.mark.parametrize("set_back_s", [1.0, 50.0])
def test_stamps_out_of_line_do_not_prolong_a_change(rate_hz: float, share: float, set_back_s: float) -> None:
    clock, old_s = SenderClock(MAX_AGE_S), []
    for stamp_s, now_s, is_outlier in readings_with_outliers(rate_hz, share, 0.0, set_back_s=set_back_s):
        if now_s - clock.taken_s(stamp_s, now_s) > MAX_AGE_S and not is_outlier and now_s > BEGUN_S + 1.0:
            old_s.append(now_s - BEGUN_S - 20.0)
    assert all(0.0 <= seconds < MAX_AGE_S + 0.15 for seconds in old_s)


@pytest.mark.parametrize("max_age_s", [0.05, 0.2, 3.0, 1e9])
def test_other_ages_that_are_allowed(max_age_s: float) -> None:
    clock = SenderClock(max_age_s)
    old = []
    for index in range(2000):
        stamp_s = 5.0 + 0.6 * 0.01 * index - (50.0 if index >= 1000 else 0.0)
        now_s = BEGUN_S + 0.01 * index
        if now_s - clock.taken_s(stamp_s, now_s) > max_age_s:
            old.append(index)
    assert all(1000 <= index < 1000 + 100 * (max_age_s + 0.1) for index in old)
