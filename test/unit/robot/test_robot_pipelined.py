"""A robot whose System 1 has a pipelined session: several requests in flight, and which answers count (AURAS §4.2.2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ros2_rfm_serving.robot import RobotConfig
from ros2_rfm_serving.robot.config import ComponentClientConfig, TaskPolicy
from ros2_rfm_serving.types import ActionChunk, Fallback, ObservationRequest, PipelineConfig, TaskOutcome
from test.unit.fakes import CONTRACT, chunk, grant, rows, schedule
from test.unit.robot.robots import CONFIG, GOAL, PERIOD_S, Rig

PIPELINES = replace(CONTRACT, pipelines=True, chunk_length=16, max_inference_delay_steps=12)
PIPELINED = replace(
    CONFIG,
    execution_horizon=2,
    pipelining=PipelineConfig(pp_perception=1, pp_generation=2),
    link=ComponentClientConfig(request_timeout_s=1.0, max_timeouts=2),
)


class Pipelined(Rig):
    """Keeps what was asked."""

    def __init__(self, config: RobotConfig = PIPELINED, slo_s: float = 0.0) -> None:
        super().__init__(config)
        self.asked: list[ObservationRequest] = []
        told = schedule()
        routes = tuple(replace(route, slo_s=slo_s) for route in told.routes)
        self.brain.on_schedule(replace(told, routes=routes), self.now_s)
        ((_, self.opening),) = self.tick().opens
        self.brain.on_session_opened("system1", "s1", grant(5, PIPELINES), self.now_s)
        self.brain.start(GOAL, self.now_s)

    def run(self, steps: int = 1) -> list[int]:
        """The control periods in which something was asked, from now on."""
        found = []
        for step in range(steps):
            requests = [request for _, request in self.tick().requests]
            self.asked += requests
            found += [step] * len(requests)
        return found

    def answer(self, sequence: int, ended_with: int | None = None, **changes: object) -> bool:
        values = rows(float(100 * sequence), 16)
        request = next(request for request in self.asked if request.id.sequence == sequence)
        return self.brain.on_reply(chunk(request, values, ended_with=ended_with, **changes), self.now_s)

    def refused(self) -> dict[str, int]:
        return {name: count for name, count in self.brain.refused.items() if count}


def test_it_asks_once_per_frame_for_as_many_as_its_depth() -> None:
    rig = Pipelined()
    assert rig.opening.pipelining == PIPELINED.pipelining
    assert rig.run(12) == [0, 2, 4], "three in flight, two steps apart, and no more"
    assert rig.answer(1, 3) and rig.run(4) == [0] and rig.refused() == {}


def test_answers_that_keep_up_with_the_frames_leave_no_gap() -> None:
    rig = Pipelined()
    rig.run(5)
    for sequence in range(1, 20):
        assert rig.answer(sequence, sequence + 2)
        assert rig.run(2)[-1:] == [1]
    assert rig.brain.held_ticks <= 5 and rig.brain.rates(rig.now_s)[1] > 0.0
    assert rig.refused() == {}


def test_rows_count_from_the_observation_that_the_last_steps_saw() -> None:
    rig = Pipelined()
    rig.run(5)
    assert rig.answer(1, 3)
    assert rig.brain.queue_depth == 16, "no step was executed since"
    rig.run(3)
    assert rig.brain._queue.steps_executed == 3 and rig.asked[-1].id.sequence == 4
    rig.run(1)
    assert rig.answer(2, 4)
    (sent,) = [each for each in rig.brain._clients.system1._pending._sent.values() if each.id.sequence == 4]  # type: ignore[union-attr]
    assert rig.brain._queue.steps_since_merge == rig.brain._queue.steps_executed - sent.steps_executed > 0


def test_age_counts_from_what_it_ended_with_and_the_oldest_is_told() -> None:
    rig = Pipelined(replace(PIPELINED, max_action_age_s=0.5))
    rig.run(5)
    asked_s = {request.id.sequence: request.stamp_ns / 1e9 for request in rig.asked}
    assert rig.answer(1, 3)
    rig.run(1)
    assert rig.brain.staleness_s == pytest.approx(rig.now_s - asked_s[3])
    assert rig.brain.oldest_staleness_s == pytest.approx(rig.now_s - asked_s[1])
    why = rig.brain.why
    assert why.origin is not None and (why.origin.id.sequence, why.origin.ended_with) == (1, 3)
    assert why.oldest_staleness_s == rig.brain.oldest_staleness_s
    executed_s = [rig.now_s for _ in range(20) if rig.tick().command is not None]
    assert asked_s[3] + 0.4 < executed_s[-1] < asked_s[3] + 0.5 + 1e-6, "not from the first observation, which was older"
    assert rig.brain.queue_depth == 0 and rig.refused()["stale_action"] > 0


@pytest.mark.parametrize("ended_with", [0, 1, 4, 5, 1000])
def test_what_it_cannot_have_ended_with_is_refused_and_waited_for_further(ended_with: int) -> None:
    """It answers the second of three."""
    rig = Pipelined()
    rig.run(5)
    assert not rig.answer(2, ended_with) and rig.refused() == {"wrong_context": 1}
    assert rig.brain.queue_depth == 0
    assert rig.answer(2, 3) and rig.brain.queue_depth == 16


def test_no_observation_of_another_episode_or_session_is_seen() -> None:
    rig = Pipelined()
    rig.run(5)
    rig.brain.cancel(TaskOutcome.CANCELED, "", rig.now_s)
    rig.brain.finish()
    rig.brain.start(GOAL, rig.now_s)
    rig.run(3)
    first = rig.asked[-1].id.sequence
    assert rig.asked[-1].id.episode == 2 and not rig.answer(first, first - 2) and rig.refused()["wrong_context"] == 1
    assert not rig.answer(1, 3) and rig.refused()["stale_episode"] == 1


def test_an_older_chunk_never_replaces_a_newer_one() -> None:
    rig = Pipelined()
    rig.run(5)
    assert rig.answer(2, 3)
    assert not rig.answer(1, 3) and not rig.answer(2, 3) and rig.refused() == {"late_or_duplicate": 2}
    command = rig.tick().command
    assert command is not None and command[0] >= 200.0


def test_a_chunk_that_saw_less_than_the_last_one_is_refused() -> None:
    rig = Pipelined(replace(PIPELINED, pipelining=PipelineConfig(pp_generation=3)))
    rig.run(8)
    assert rig.answer(1, 4) and not rig.answer(2, 3)
    assert rig.refused() == {"wrong_context": 1} and rig.answer(2, 4)


def test_each_request_has_its_own_time_and_a_lost_one_costs_no_other() -> None:
    rig = Pipelined()
    rig.run(5)
    assert rig.answer(2, 3), "the first is overtaken: its server had not got it"
    rig.run(21)
    assert rig.refused() == {"request_timeout": 1} and rig.brain.sessions, "the third; those after it are younger"
    newest = rig.asked[-1].id.sequence
    assert rig.answer(newest, newest) and rig.run(20) != []


def test_a_silence_of_as_many_timeouts_as_without_pipelining_opens_the_session_anew() -> None:
    rig = Pipelined()
    rig.run(round(2.0 / PERIOD_S) - 2)
    assert rig.brain.sessions, "two timeouts of a second are not over"
    rig.run(6)
    assert not rig.brain.sessions and rig.refused()["request_timeout"] == 4


@pytest.mark.parametrize("stages", [2, 7, 15])
def test_the_silence_is_as_long_however_many_are_in_flight(stages: int) -> None:
    rig = Pipelined(replace(PIPELINED, execution_horizon=6, pipelining=PipelineConfig(pp_generation=stages)))
    rig.run(round(2.0 / PERIOD_S) - 2)
    assert rig.brain.sessions, "two timeouts of a second are not over"
    rig.run(10)
    assert not rig.brain.sessions and rig.refused()["request_timeout"] >= 2


def test_a_robot_that_waits_takes_nothing_that_was_asked_before_it_moved_on() -> None:
    """What it asks while it waits has no prefix: a chunk that comes while it moves goes on from nothing that it executed."""
    rig = Pipelined(replace(PIPELINED, execution_horizon=4, link=replace(PIPELINED.link, counts_first_latency=True)))
    system1 = rig.brain._clients.system1
    assert system1 is not None
    system1.contract = replace(PIPELINES, max_inference_delay_steps=2)
    rig.run(12)
    assert rig.answer(1, 1) and rig.brain._client.timing.waits_for_chunk, "it took eleven steps; the robot stood"
    assert rig.run(6) == [4], "it executes its horizon, and asks when that is over"
    assert rig.answer(2, 4), "it has stood since the last was asked"
    rig.run(2)
    assert not rig.answer(3, 4) and rig.refused()["delay_not_bridged"] == 1, "it has moved on since"


def test_what_is_late_is_discarded_and_what_is_not_is_waited_for() -> None:
    policy = TaskPolicy(fallbacks={"system1": Fallback.STOP_AND_RESEND}, max_consecutive_slo_violation=100)
    rig = Pipelined(replace(PIPELINED, policy=policy), slo_s=0.29)
    rig.run(5)
    rig.run(2)
    assert rig.refused() == {"late_answer": 1}
    assert not rig.answer(1, 3) and rig.answer(2, 3)


def test_a_server_that_pipelines_nothing_gets_no_such_requests() -> None:
    rig = Rig(PIPELINED)
    rig.brain.on_schedule(schedule(), rig.now_s)
    rig.tick()
    rig.brain.on_session_opened("system1", "s1", grant(5), rig.now_s)
    assert not rig.brain.sessions and rig.brain.refused["not_pipelined"] == 1
    assert "s1 takes no pipelined sessions" in rig.brain._clients.system1.problem  # type: ignore[union-attr]


def test_a_robot_with_one_request_in_flight_takes_no_chunk_that_ended_elsewhere() -> None:
    rig = Rig().connect()
    rig.brain.start(GOAL, rig.now_s)
    request = rig.ask()
    said: list[ActionChunk] = [chunk(request, ended_with=request.id.sequence + 1), chunk(request, ended_with=request.id.sequence)]
    assert [rig.brain.on_reply(each, rig.now_s) for each in said] == [False, True]
    assert rig.brain.refused["wrong_context"] == 1 and np.isfinite(rig.brain.queue_depth)
