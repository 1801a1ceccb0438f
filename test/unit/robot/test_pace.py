"""How often one link is asked, whatever happens to it: its cap, its place in the period, and that it goes on."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.robot.client.component_client import ClientState, ComponentClient
from ros2_rfm_serving.robot.config import ComponentClientConfig
from ros2_rfm_serving.robot.motion.command_generator import CommandGenerator
from ros2_rfm_serving.types import SAFETY, RequestId, Route
from ros2_rfm_serving.types.desynchronisation import LatencyBaseline, RequestPhase, Spacing, chunk_slack_s, in_flight_correction
from test.unit.fakes import SERVED, chunk, grant, observation, schedule
from test.unit.robot.robots import CONFIG, PERIOD_S

EPS = 1e-6
EVENTS = ("answer", "answer", "answer", "answer", "time", "time", "give up", "rate", "schedule again", "session", "freeze")


def route(rate_hz: float) -> Route:
    return replace(schedule().routes[0], max_rate_hz=rate_hz, slo_s=0.0)


def linked(rate_hz: float) -> ComponentClient:
    link = ComponentClient(
        "r1", "system1", ComponentClientConfig(request_timeout_s=math.inf, counts_first_latency=True), desynchronises=True
    )
    link.follow(route(rate_hz), "s1", 0.0)
    link.on_opened(grant())
    return link


def answer(link: ComponentClient, identity: RequestId, now_s: float, unusual_s: float = 0.0) -> None:
    reply = chunk(replace(observation(identity.session_epoch), id=identity), served=replace(SERVED, excess_delay_s=unusual_s))
    assert not isinstance(link.accept(reply, now_s), str)


def asked(link: ComponentClient, now_s: float, takes_s: float, unusual_s: float = 0.0) -> None:
    answer(link, link.on_sent(1, now_s, 0, now_s), now_s + takes_s, unusual_s)


def test_the_very_next_request_gives_way() -> None:
    link = linked(2.0)
    asked(link, 0.0, 0.1)
    assert link.ready_s == pytest.approx(0.5)
    asked(link, 0.5, 0.3, unusual_s=0.2)  # it met another robot's
    assert link.ready_s == link.next_send_s == pytest.approx(1.2)


@pytest.mark.parametrize(("unusual_s", "expected_s"), [(0.2, 1.0), (9.0, 1.0), (-0.2, 0.8)])
def test_a_request_of_safety_comes_earlier_and_never_later(unusual_s: float, expected_s: float) -> None:
    """Its last pass would last longer than the period and the SLO of docs/safety.md."""
    link = linked(2.0)
    link.component = SAFETY
    asked(link, 0.0, 0.3)
    asked(link, 0.5, 0.3, unusual_s)
    assert link.next_send_s == pytest.approx(expected_s)


def test_at_another_pace_it_may_be_asked_when_its_place_in_the_period_comes() -> None:
    link = linked(0.1)
    asked(link, 0.0, 0.1)
    link.follow(route(10.0), "s1", 5.0)
    assert link.ready_s == link.next_send_s == pytest.approx(5.05)
    link.follow(route(0.1), "s1", 5.025)
    assert link.ready_s == link.next_send_s == pytest.approx(7.525), "no earlier than the new cap allows"


def test_at_another_pace_a_pipelined_session_still_has_one_request_per_frame() -> None:
    link = linked(2.0)
    link.pipeline(3, 0.2)
    link.on_sent(1, 0.0, 0, 0.0)
    link.follow(route(100.0), "s1", 0.05)
    assert link.ready_s == pytest.approx(0.2)


def test_one_answer_that_takes_long_is_made_up_for_by_one_period_of_requests() -> None:
    """Not by dozens beyond the cap, while what is usual comes back to what it was."""
    link, usual, now_s, sent_s = linked(10.0), LatencyBaseline(), 0.0, []
    for number in range(100):
        now_s = max(now_s, link.ready_s)
        sent_s.append(now_s)
        takes_s = 10.0 if number in (0, 20) else 0.01
        asked(link, now_s, takes_s, usual.excess_delay_s(takes_s, 10))
        now_s += takes_s
    assert most_beyond(sent_s, 0.1) <= 3.0 + EPS


def test_a_robot_that_switches_servers_often_keeps_its_cap_whatever_they_report() -> None:
    link, now_s, sent_s = linked(5.0), 0.0, []
    for number in range(300):
        if number % 3 == 2:
            link.follow(route(5.0), f"s{number % 2}", now_s)
            link.on_opened(grant(number))
        now_s = max(now_s, link.ready_s)
        sent_s.append(now_s)
        asked(link, now_s, 0.01, unusual_s=-1e30)
        now_s += 0.01
    assert most_beyond(sent_s, 0.2) <= 3.0 + EPS


def test_what_has_become_usual_moves_nothing_any_more() -> None:
    phase, usual = RequestPhase(), LatencyBaseline()
    waits_s = [0.1] * 50 + [3.0] * 50 + [0.1] * 200
    moved_s = [phase.phase_shift_s(usual.excess_delay_s(waited_s, 2), 0.5) for waited_s in waits_s]
    assert sum(moved_s[:50]) == pytest.approx(0.0) and moved_s[50] == pytest.approx(0.5)
    assert all(abs(sum(moved_s[:n])) < 0.5 + EPS for n in range(len(moved_s)))
    assert not any(abs(move_s) > 1e-3 for move_s in moved_s[-50:]) and usual.mean_s == pytest.approx(0.1)


def test_what_is_usual_follows_what_a_server_takes() -> None:
    """Within some cycles, to a millisecond."""
    usual = LatencyBaseline()
    for latency_s in (0.1, 0.3):
        unusual_s = [usual.excess_delay_s(latency_s, 5) for _ in range(200)]
        assert abs(unusual_s[-1]) < 1e-3 and usual.mean_s == pytest.approx(latency_s, abs=1e-3)


def test_who_always_waits_longer_than_others_gets_used_to_it() -> None:
    phase = RequestPhase()
    moved_s = [phase.phase_shift_s(0.1, 0.5) for _ in range(1_000)]
    assert moved_s[0] == 0.1 and sum(moved_s) == pytest.approx(0.5) and phase.accustomed_delay_s == pytest.approx(0.1)
    assert phase.phase_shift_s(0.05, 0.5) == pytest.approx(-0.05), "it gives way as ever"


def test_who_may_only_ask_later_makes_up_for_quicker_answers_first() -> None:
    phase = RequestPhase()
    moves_s = [phase.delay_only_shift_s(unusual_s, 0.5) for unusual_s in (0.1, -0.1, 0.05, 0.06, -9.0, 0.3, 9.0)]
    assert moves_s[:3] == [0.1, 0.0, 0.0] and moves_s[3] == pytest.approx(0.01, abs=0.01)
    assert moves_s[4:6] == [0.0, 0.0] and 0.25 < moves_s[6] < 0.35, "what it is ahead by is a period at most, as is a move"


def test_the_first_of_a_crowd_stays_and_the_others_fall_in_behind_it() -> None:
    """Who asks as often as its actions end: four at once, one answer every 0.1 s. The third time the last waits half as long."""
    usual, phases, asks_s, waits_s = LatencyBaseline(), [RequestPhase() for _ in range(4)], [0.0] * 4, [0.0] * 4
    for cycle in range(40):
        free_s = -math.inf
        for robot in sorted(range(4), key=lambda each: asks_s[each]):
            free_s = max(free_s, asks_s[robot]) + 0.1
            waits_s[robot] = free_s - asks_s[robot]
            asks_s[robot] += phases[robot].delay_only_shift_s(usual.excess_delay_s(waits_s[robot], 4), 1.0)
        assert cycle < 2 or max(waits_s) < 0.22
    assert asks_s[0] == 0.0 and max(asks_s) < 0.5, "then they stay where they are"


@pytest.mark.parametrize("unusual_s", [math.nan, math.inf, -math.inf, 1e30, -1e30])
def test_whatever_a_server_says_nobody_gives_way_beyond_its_chunk(unusual_s: float) -> None:
    link = linked(2.0)
    link.horizon_s, link.chunk_duration_s = 0.5, 0.9
    asked(link, 0.0, 0.1, unusual_s)
    assert 0.0 <= link.phase_shift_s <= 0.3 + EPS, "another answer is left"
    assert link.ready_s == pytest.approx(0.5), "the cap is as it was"
    asked(link, 0.5, 0.5, unusual_s)
    assert link.phase_shift_s == 0.0, "a chunk that lasts no longer than it takes leaves nothing"
    paced = linked(2.0)
    paced.chunk_duration_s = 0.9
    asked(paced, 0.0, 0.1, unusual_s)
    assert paced.ready_s <= 0.8 + EPS


@pytest.mark.parametrize("unusual_s", [math.nan, math.inf, -math.inf, 1e30, -1e30])
def test_whatever_a_server_says_the_phase_moves_by_a_period_at_most(unusual_s: float) -> None:
    link = linked(2.0)
    asked(link, 0.0, 0.1, unusual_s)
    assert 0.0 <= link.ready_s <= 1.0
    asked(link, link.ready_s, 0.1)
    assert 0.0 < link.ready_s <= 2.0


def test_a_robot_that_stands_in_every_cycle_may_come_later() -> None:
    """Its chunk ends before its next answer, whenever it asks: it has no actions to lose, and would never leave a crowd."""
    assert chunk_slack_s(0.9, 0.5, 0.1) == pytest.approx(0.3) and chunk_slack_s(0.3, 0.5, 0.1) == 0.0
    assert RequestPhase().phase_shift_s(0.2, 0.5, slack_s=0.1) == pytest.approx(0.1), "within what is left of its chunk"
    assert RequestPhase().phase_shift_s(0.2, 0.5, slack_s=0.0) == pytest.approx(0.2)


def test_a_row_that_others_joined_asks_earlier_and_one_that_joined_others_later() -> None:
    assert in_flight_correction(0, 0) == 0.0
    assert in_flight_correction(0, 1) == -in_flight_correction(1, 0) == -0.25
    assert sum(in_flight_correction(place, 3 - place) for place in range(4)) == pytest.approx(0.0), "of rows that entered together"


def test_a_shorter_period_is_not_made_up_for_at_once() -> None:
    """What moved by a second while a period was one: a fifth of it from now on, and that once more at most."""
    phase = RequestPhase()
    assert phase.phase_shift_s(1.0, 1.0) == 1.0
    assert abs(phase.phase_shift_s(0.0, 0.2)) < 0.2


def test_robots_that_wait_for_each_other_ask_as_they_were_answered() -> None:
    """Four at once, one answer every 0.1 s: the third time nobody waits."""
    usual, phases, asks_s, waits_s = LatencyBaseline(), [RequestPhase() for _ in range(4)], [0.0] * 4, [0.0] * 4
    for cycle in range(20):
        free_s = -math.inf
        for robot in sorted(range(4), key=lambda each: asks_s[each]):
            free_s = max(free_s, asks_s[robot]) + 0.1
            waits_s[robot] = free_s - asks_s[robot]
            asks_s[robot] += phases[robot].phase_shift_s(usual.excess_delay_s(waits_s[robot], 4), 1.0)  # in its period of 1 s
        assert cycle < 2 or max(waits_s) < 0.11
    assert abs(sum(asks_s)) / 4 < 0.5, "the rate is that of the cap"


def crowd(num_robots: int, period_s: float, takes_s: float, spacing: Spacing | None, cycles: int) -> list[float]:
    """Return when each robot asks next in its period, in order, after a common start at a server that answers one by one."""
    usual, phases, asks_s = LatencyBaseline(), [RequestPhase() for _ in range(num_robots)], [0.0] * num_robots
    for cycle in range(cycles):
        free_s = -math.inf
        for robot in sorted(range(num_robots), key=lambda each: asks_s[each]):
            arrived_s = cycle * period_s + asks_s[robot]
            free_s = max(free_s, arrived_s) + takes_s
            turn_s = spacing.turn_s(robot, arrived_s) if spacing else 0.0
            asks_s[robot] += phases[robot].phase_shift_s(
                usual.excess_delay_s(max(free_s - arrived_s, turn_s), num_robots), period_s
            )
    return sorted(asks_s)


def test_a_crowd_at_a_quick_server_spreads_over_most_of_its_period() -> None:
    """48 that ask every 4.7 s, each answered within 20 ms: by their waits alone they stay within a third of that."""
    by_waits = crowd(48, 4.7, 0.02, None, 6)
    apart = crowd(48, 4.7, 0.02, Spacing(), 6)
    assert by_waits[-1] - by_waits[0] < 1.5
    assert 2.5 < apart[-1] - apart[0] < 4.7 + EPS
    assert all(b - a > 2 * 0.02 for a, b in pairwise(apart)), "nobody waits for another one"
    assert abs(sum(apart)) / 48 < 4.7, "a period at the most is lost or gained, once"


def test_requests_that_come_evenly_have_no_turn_to_wait_for() -> None:
    spacing = Spacing()
    turns_s = [spacing.turn_s(f"r{i % 5}", 0.2 * i) for i in range(50)]
    assert turns_s == [0.0] * 50


def test_while_half_of_the_robots_are_known_the_others_are_taken_for_as_quick() -> None:
    """Of a crowd that comes back for the first time nobody is sent away for longer than a period."""
    spacing = Spacing()
    turns_s = [spacing.turn_s(i, cycle + 1e-3 * i) for cycle in range(3) for i in range(20)]
    assert turns_s[:20] == [0.0] * 20 and 0.5 < max(turns_s) < 1.0


def test_robots_that_paused_or_left_do_not_change_how_often_others_are_expected() -> None:
    def turns_s(spacing: Spacing, from_s: float) -> list[float]:
        return [spacing.turn_s(i, from_s) for i in range(3)]

    spacing = Spacing()
    for cycle in range(5):
        turns_s(spacing, cycle)
    before = turns_s(spacing, 5.0)
    assert before == pytest.approx([0.0, 0.7 / 3, 1.4 / 3])
    assert turns_s(spacing, 3600.0) == pytest.approx(before), "all had paused"
    spacing.forget(2)
    spacing.forget("never seen")
    assert [spacing.turn_s(i, 3601.0) for i in range(2)] == pytest.approx([0.0, 0.35])
    for robot in range(2):
        spacing.forget(robot)
    assert turns_s(spacing, 3602.0) == [0.0] * 3, "nothing is known of anybody"


def test_a_horizon_beyond_the_chunk_is_the_chunk() -> None:
    """What the scheduler plans with: no server makes a robot seem to act for an hour on four rows."""
    motor = CommandGenerator(CONFIG, Counter())
    for horizon in (65_535, 2, 0):
        answered = replace(chunk(observation(1)), execution_horizon=horizon)
        assert motor.enqueue(answered, motor.queue.steps_executed, 0.0, real_delay=0) == ""
    assert motor.horizons.sum == pytest.approx((4 + 2) * PERIOD_S) and sum(motor.horizons.counts) == 2


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.floats(0.0, 1.0)), min_size=10, max_size=60))
def test_it_keeps_its_cap_and_goes_on_whatever_happens(events: list[tuple[str, float]]) -> None:
    """Of a robot that asks whenever it may. Not more in any span of time than the cap says, and three: one that was late, and a
    phase that moves by a period either way; never longer than three periods without one."""
    link, now_s, period_s, waited = linked(5.0), 0.0, 0.2, None
    sent_s: list[float] = []
    for event, share in events:
        if waited is not None and event == "answer":
            now_s += 3.0 * share**3
            answer(link, waited, now_s, unusual_s=math.tan(3.0 * (share - 0.5)))
            waited = None
        elif event == "give up":
            link.forget()
            waited = None
        elif event == "session":
            link.close("lost")
            assert link.ready_s == math.inf
            link.on_opened(grant())
            waited = None
        elif event == "rate":
            assert most_beyond(sent_s, period_s) <= 3.0 + EPS
            sent_s, period_s = [], [0.05, 0.2, 1.0][int(2.99 * share)]
            link.follow(route(1.0 / period_s), "s1", now_s)
        elif event == "schedule again":
            link.follow(route(1.0 / period_s), "s1", now_s)
        elif event in ("time", "freeze"):
            now_s += share * (period_s if event == "time" else 60.0)
        assert link.ready_s == (link.next_send_s if waited is None and link.state is ClientState.OPEN else math.inf)
        assert link.next_send_s <= now_s + 3.0 * period_s + EPS, "it starves"
        if waited is None and event != "rate" and link.ready_s <= now_s:
            waited = link.on_sent(1, now_s, 0, now_s)
            sent_s.append(now_s)
    assert most_beyond(sent_s, period_s) <= 3.0 + EPS


def most_beyond(sent_s: list[float], period_s: float) -> float:
    """Requests in any span of time, less those that the cap allows in it and the first one of it."""
    level = most = 0.0
    for before_s, at_s in zip([-math.inf, *sent_s], sent_s, strict=False):
        level = max(0.0, level - (at_s - before_s) / period_s) + 1.0
        most = max(most, level - 1.0)
    return most
