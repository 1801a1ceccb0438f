"""Whose schedule counts: forged, replayed, reordered, restarted, two at once. Nothing wedges, and nothing flips between two."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.types import Schedule, ScheduleFollower, ScheduleVerdict
from ros2_rfm_serving.types.schedule_follower import MAX_OTHERS, REPEAT_PERIOD_S, SILENT_AFTER_S

HUGE = 2**32 - 1
WITHIN_S = SILENT_AFTER_S + 2 * REPEAT_PERIOD_S
"""In which everybody follows the only scheduler that lives: silence is noticed, and the next repetition counts."""


def schedule(scheduler: int, epoch: int, policy: str = "test") -> Schedule:
    return Schedule(scheduler=scheduler, epoch=epoch, placements=(), routes=(), predicted_actions_hz=0.0, policy=policy)


def live(followed: ScheduleFollower, told: Schedule, begin_s: float, seconds: float) -> list[tuple[float, ScheduleVerdict]]:
    """What is heard while a scheduler repeats it."""
    periods = int(seconds / REPEAT_PERIOD_S)
    times = [begin_s + REPEAT_PERIOD_S * k for k in range(periods + 1)]
    return [(now_s, followed.on_schedule(told, now_s)) for now_s in times]


def test_a_newer_epoch_counts_at_once_and_an_older_one_never_while_it_is_repeated() -> None:
    followed = ScheduleFollower()
    assert followed.on_schedule(schedule(1, 1), 0.0) is ScheduleVerdict.NEWER
    assert followed.on_schedule(schedule(1, 3), 0.1) is ScheduleVerdict.NEWER
    assert followed.on_schedule(schedule(1, 2), 0.2) is ScheduleVerdict.STALE
    assert followed.on_schedule(schedule(1, 3), 2.0) is ScheduleVerdict.REPEATED
    assert followed.on_schedule(schedule(1, 3, "forged"), 2.1) is ScheduleVerdict.STALE
    assert followed.epoch == 3 and followed.schedule == schedule(1, 3)


def test_a_forged_epoch_of_the_scheduler_that_is_followed_heals_within_seconds() -> None:
    followed = ScheduleFollower()
    live(followed, schedule(1, 5), 0.0, 10.0)
    assert followed.on_schedule(schedule(1, HUGE, "forged"), 10.5) is ScheduleVerdict.NEWER  # nobody can tell
    heard = live(followed, schedule(1, 5), 12.0, WITHIN_S)
    assert followed.epoch == 5 and heard[-1][1] is ScheduleVerdict.REPEATED and followed.takeovers == 1
    assert followed.on_schedule(schedule(1, 6), 30.0) is ScheduleVerdict.NEWER


def test_one_forged_message_of_another_scheduler_changes_nothing_whoever_is_silent() -> None:
    followed = ScheduleFollower()
    live(followed, schedule(1, 5), 0.0, 10.0)
    assert followed.on_schedule(schedule(66, HUGE), 10.1) is ScheduleVerdict.RIVAL and followed.num_rivals(10.2) == 1
    assert followed.on_schedule(schedule(66, HUGE), 60.0) is ScheduleVerdict.RIVAL, "once a minute is no life"
    assert followed.on_schedule(schedule(1, 5), 60.1) is ScheduleVerdict.REPEATED and followed.num_rivals(70.0) == 0


def test_a_restarted_scheduler_takes_over_from_epoch_1_and_its_predecessor_does_not_come_back() -> None:
    followed = ScheduleFollower()
    live(followed, schedule(1, 9), 0.0, 10.0)
    heard = live(followed, schedule(2, 1), 11.0, WITHIN_S)
    assert [what for _, what in heard].count(ScheduleVerdict.TAKEOVER) == 1 and followed.scheduler == 2 and followed.takeovers == 1
    assert followed.on_schedule(schedule(1, 9), heard[-1][0] + 0.1) is ScheduleVerdict.RIVAL, "a replay of the one that died"


def test_a_first_schedule_that_was_forged_gives_way_to_the_scheduler_that_lives() -> None:
    followed = ScheduleFollower()
    followed.on_schedule(schedule(66, HUGE), 0.0)
    live(followed, schedule(1, 1), 0.5, WITHIN_S)
    assert followed.scheduler == 1


def test_what_is_remembered_of_others_has_a_bound() -> None:
    followed = ScheduleFollower()
    live(followed, schedule(1, 1), 0.0, 2.0)
    for k in range(1000):
        followed.on_schedule(schedule(100 + k, HUGE), 2.0 + k * 1e-3)
    assert len(followed._rivals) == MAX_OTHERS
    live(followed, schedule(2, 1), 3.0, 2 * WITHIN_S)
    assert followed.scheduler == 2


forgery = st.tuples(st.floats(0.0, 40.0), st.integers(1, 4), st.sampled_from([1, 2, 3, 7, HUGE]))


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32), forgeries=st.lists(forgery, max_size=12), restart_s=st.floats(5.0, 35.0), gap_s=st.floats(0.0, 10.0)
)
def test_the_only_scheduler_that_lives_is_followed_by_everybody_within_seconds(
    seed: int, forgeries: list[tuple[float, int, int]], restart_s: float, gap_s: float
) -> None:
    """Scheduler 1 runs, is restarted as scheduler 2; others (and in their names) are forged or replayed until 40 s. Messages are
    late by up to 0.3 s, so they overtake each other, and each one in ten is lost."""
    draw = random.Random(seed)
    told: list[tuple[float, Schedule]] = [(s, schedule(who, epoch, "forged")) for s, who, epoch in forgeries]
    for who, begin_s, end_s in ((1, 0.0, restart_s), (2, restart_s + gap_s, 80.0)):
        now_s, epoch = begin_s, 1
        while now_s < end_s:
            told.append((now_s, schedule(who, epoch)))
            replayed = draw.random() < 0.1 and now_s < 38.0
            told += [(now_s + draw.uniform(0.0, 2.0), schedule(who, max(1, epoch - 1)))] * replayed
            now_s += REPEAT_PERIOD_S
            epoch += draw.random() < 0.2 and now_s < 60.0
    last = (
        told[-1][1]
        if told[-1][1].scheduler == 2
        else max((s for _, s in told if s.scheduler == 2 and s.policy == "test"), key=lambda s: s.epoch)
    )
    followers = [ScheduleFollower() for _ in range(3)]
    for followed in followers:
        arrivals = sorted((at + draw.uniform(0.0, 0.3), k) for k, (at, _) in enumerate(told) if draw.random() > 0.1 or at > 60.0)
        for now_s, k in arrivals:
            followed.on_schedule(told[k][1], now_s)
    assert all(followed.schedule == last for followed in followers)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), phase_s=st.floats(0.0, 2.0))
def test_between_two_that_live_nobody_flips(seed: int, phase_s: float) -> None:
    """Each repetition is up to 0.2 s late, and one of a scheduler may be lost, but no two in a row."""
    draw = random.Random(seed)
    arrivals = []
    for who, offset_s in ((1, 0.0), (2, phase_s)):
        lost = False
        for k in range(200):
            lost = not lost and draw.random() < 0.2
            if not lost:
                arrivals.append((offset_s + k * REPEAT_PERIOD_S + draw.uniform(0.0, 0.2), who))
    followed = ScheduleFollower()
    for now_s, who in sorted(arrivals):
        followed.on_schedule(schedule(who, 1), now_s)
    assert followed.takeovers == 0 and followed.num_rivals(now_s) == 1
