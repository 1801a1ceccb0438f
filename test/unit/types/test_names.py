"""Of any number of processes that want one name exactly one keeps it, however their words travel."""

from __future__ import annotations

import heapq
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.types import ClaimStage, NameClaim
from ros2_rfm_serving.types.names import CLAIM_S, SETTLED_AFTER_S


def test_whoever_holds_the_name_keeps_it_and_knows_who_wanted_it() -> None:
    holder, other = NameClaim(5), NameClaim(9)
    holder.stage = ClaimStage.HELD
    holder.hear(other.process, other.stage, 1.0)
    other.hear(holder.process, holder.stage, 1.0)
    assert (holder.lost, other.lost) == (False, True)
    assert holder.intruders == {9} and holder.is_disputed(2.0) and not holder.is_disputed(100.0)


def test_its_own_word_is_nobody_elses() -> None:
    one = NameClaim(5)
    one.hear(5, ClaimStage.SETTLED, 0.0)
    assert not one.lost and not one.intruders


def test_the_longer_of_two_that_hold_it_keeps_it() -> None:
    settled, held = NameClaim(5), NameClaim(9)
    settled.stage, held.stage = ClaimStage.SETTLED, ClaimStage.HELD
    settled.hear(held.process, held.stage, 20.0)
    held.hear(settled.process, settled.stage, 20.0)
    assert (settled.lost, held.lost) == (False, True)


@settings(max_examples=300, deadline=None)
@given(
    starts_s=st.lists(st.floats(0.0, 15.0), min_size=2, max_size=6),
    processes=st.lists(st.integers(1, 2**64 - 1), min_size=6, max_size=6, unique=True),
    delays_s=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=30),
)
def test_exactly_one_is_left(starts_s: list[float], processes: list[int], delays_s: list[float]) -> None:
    """Discovery may take longer than anybody looks around: then two hold the name for a while. Words of one process to another
    arrive in their order, and whoever is gone says nothing more to those who come later."""
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
        heapq.heappush(events, (at_s, next(order), speaker, listener, int(claims[speaker].stage)))

    for one, start_s in enumerate(starts_s):
        for after_s, stage in ((0.0, 0), (CLAIM_S, 1), (CLAIM_S + SETTLED_AFTER_S, 2)):
            heapq.heappush(events, (start_s + after_s, next(order), one, -1, stage))
    while events:
        now_s, _, speaker, listener, stage = heapq.heappop(events)
        if listener >= 0:
            if alive[listener]:
                claims[listener].hear(claims[speaker].process, stage, now_s)
                alive[listener] = not claims[listener].lost
        elif stage == 0 or alive[speaker]:
            alive[speaker], claims[speaker].stage = True, ClaimStage(stage)
            say(now_s, speaker)
            for other in range(len(claims)):  # what those who are there have said last is latched
                if stage == 0 and other != speaker and alive[other]:
                    tell(now_s, other, speaker)
    assert sum(alive) == 1
