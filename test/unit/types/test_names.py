"""Of any number of processes that want one name exactly one keeps it, however their words travel."""

from __future__ import annotations

import heapq
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.types import ClaimStage, NameClaim
from ros2_rfm_serving.types.names import CLAIM_S, LAST_STAGE, SETTLED_AFTER_S


def held(process: int, since_s: float) -> NameClaim:
    claim = NameClaim(process)
    claim.acquire(since_s)
    return claim


def meet(one: NameClaim, other: NameClaim, now_s: float) -> tuple[bool, bool]:
    """Who has lost, when each has heard the other."""
    stages = one.stage(now_s), other.stage(now_s)
    one.on_claim(other.process, stages[1], now_s)
    other.on_claim(one.process, stages[0], now_s)
    return one.is_lost, other.is_lost


def test_whoever_holds_the_name_keeps_it_and_knows_who_wanted_it() -> None:
    holder, other = held(5, 0.0), NameClaim(9)
    assert meet(holder, other, 1.0) == (False, True)
    assert holder.intruders == {9} and holder.is_disputed(2.0) and not holder.is_disputed(100.0)


def test_its_own_word_is_nobody_elses() -> None:
    one = NameClaim(5)
    one.on_claim(5, ClaimStage.SETTLED, 0.0)
    assert not one.is_lost and not one.intruders


@pytest.mark.parametrize(("later_s", "met_s"), [(19.0, 20.0), (2.0, 20.0), (2.0, 400.0)])
def test_of_two_that_hold_it_the_one_that_came_first_keeps_it_however_late_they_meet(later_s: float, met_s: float) -> None:
    """By more than `SETTLED_AFTER_S`: who came at the same time draws."""
    assert meet(held(5, 0.0), held(9, later_s), met_s) == (False, True)


def test_a_claim_says_for_how_long_it_is_held_as_far_as_a_byte_goes() -> None:
    claim = held(5, 10.0)
    assert [claim.stage(10.0 + age_s) for age_s in (0.0, 1.9, 2.0, 3.9, 4.0)] == [1, 1, 2, 2, 3]
    assert claim.stage(1e6) == LAST_STAGE and meet(claim, held(9, 10.0), 1e6) == (True, False)


@settings(max_examples=300, deadline=None)
@given(
    starts_s=st.lists(st.floats(0.0, 15.0), min_size=2, max_size=6),
    processes=st.lists(st.integers(1, 2**64 - 1), min_size=6, max_size=6, unique=True),
    delays_s=st.lists(st.floats(0.01, 12.0), min_size=1, max_size=30),
)
def test_exactly_one_is_left(starts_s: list[float], processes: list[int], delays_s: list[float]) -> None:
    """Discovery may take longer than anybody looks around: then two hold the name for a while. Words of one process to another
    arrive in their order, whoever holds the name answers, and whoever is gone says nothing more to those who come later."""
    claims = [NameClaim(process) for process in processes[: len(starts_s)]]
    delays, order = itertools.cycle(delays_s), itertools.count()
    alive = [False] * len(claims)
    heard_s: dict[tuple[int, int], float] = {}
    events: list[tuple[float, int, int, int, int]] = []

    def say(now_s: float, speaker: int) -> None:
        for listener in range(len(claims)):
            if listener != speaker and starts_s[listener] <= now_s:
                tell(now_s, speaker, listener)

    def tell(now_s: float, speaker: int, listener: int) -> None:
        at_s = max(now_s + next(delays), heard_s.get((speaker, listener), 0.0))
        heard_s[speaker, listener] = at_s
        heapq.heappush(events, (at_s, next(order), speaker, listener, claims[speaker].stage(now_s)))

    for one, start_s in enumerate(starts_s):
        for after_s, begins in ((0.0, 0), (CLAIM_S, 1), (CLAIM_S + SETTLED_AFTER_S, 2)):
            heapq.heappush(events, (start_s + after_s, next(order), one, -1, begins))
    while events:
        now_s, _, speaker, listener, stage = heapq.heappop(events)
        if listener >= 0:
            if alive[listener]:
                claims[listener].on_claim(claims[speaker].process, stage, now_s)
                alive[listener] = not claims[listener].is_lost
                if alive[listener] and claims[listener].is_held and alive[speaker]:
                    tell(now_s, listener, speaker)
        elif stage == 0 or alive[speaker]:
            alive[speaker] = True
            if stage == 1:
                claims[speaker].acquire(now_s)
            say(now_s, speaker)
            for other in range(len(claims)):  # what those who are there have said last is latched
                if stage == 0 and other != speaker and alive[other]:
                    tell(now_s, other, speaker)
    assert sum(alive) == 1
