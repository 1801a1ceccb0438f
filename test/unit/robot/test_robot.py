from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ros2_rfm_serving.robot import RobotCore
from ros2_rfm_serving.robot.config import CommandType, Motion, Rung
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.types import (
    JudgeVerdict,
    ObservationRequest,
    RequestId,
    RobotState,
    TaskOutcome,
    TaskPhase,
)
from test.unit.fakes import CONTRACT, NAMES, SERVED, chunk, grant, rows, schedule
from test.unit.robot.robots import CONFIG, GOAL, PERIOD_S, Rig, sensors, working


def test_nothing_moves_before_a_task_and_a_chunk() -> None:
    rig = Rig().connect()
    assert rig.tick().requests == ()
    rig.brain.start(GOAL, rig.now_s)
    tick = rig.tick()
    assert tick.command is None and len(tick.requests) == 1
    assert rig.tick().requests == (), "one in flight"
    rig.brain.on_reply(chunk(tick.requests[0][1]), rig.now_s)
    assert rig.tick().command.tolist() == [0, 0]
    assert rig.brain.state is RobotState.STREAMING


def test_a_request_carries_the_prefix_that_will_be_executed_meanwhile() -> None:
    rig = working()
    rig.brain.on_reply(chunk(rig.ask()), rig.now_s)
    second = rig.ask()
    assert second.inference_delay_steps == len(second.prefix_model) == 1
    assert second.prefix_robot[0].tolist() == rig.brain._queue._robot[rig.brain._queue.steps_since_merge - 1].tolist()


def test_synchronous_execution_runs_its_horizon_and_then_holds() -> None:
    rig = working(replace(CONFIG, synchronous=True))
    rig.brain.on_reply(chunk(rig.ask()), rig.now_s)
    commands = [rig.tick().command for _ in range(5)]
    assert [c is not None for c in commands] == [True, True, True, False, False]


def test_an_old_action_is_never_executed() -> None:
    rig = working()
    request = rig.ask()
    rig.tick(30)
    rig.brain.on_reply(chunk(request), rig.now_s)  # 1.5 s after its observation; too late anyway: the request timed out
    rig.brain._queue.merge(rows(), rows(), rig.brain._queue.steps_executed, rig.now_s - 1.01)
    assert rig.tick().command is None
    assert rig.brain.refused["stale_action"] == 4


SPOILED = [
    ("stale_epoch", lambda c: replace(c, id=replace(c.id, session_epoch=4))),
    ("late_or_duplicate", lambda c: replace(c, id=replace(c.id, sequence=c.id.sequence + 1))),
    ("stale_episode", lambda c: replace(c, id=replace(c.id, episode=0))),
    ("unknown_component", lambda c: replace(c, id=replace(c.id, component="other"))),
    ("wrong_model", lambda c: replace(c, model_hash="other")),
    ("wrong_actions", lambda c: replace(c, action_names=("y", "x"))),
    ("bad_shape", lambda c: replace(c, chunk_robot=np.zeros((4, 3), np.float32))),
    ("bad_shape", lambda c: replace(c, chunk_model=np.zeros((3, 2), np.float32))),
    ("bad_shape", lambda c: replace(c, chunk_robot=np.zeros((0, 2), np.float32), chunk_model=np.zeros((0, 2), np.float32))),
    ("non_finite", lambda c: replace(c, chunk_robot=np.full((4, 2), np.nan, np.float32))),
]


@pytest.mark.parametrize(("counter", "spoil"), SPOILED, ids=[f"{name}-{i}" for i, (name, _) in enumerate(SPOILED)])
def test_a_chunk_that_does_not_fit_is_counted_and_never_executed(counter: str, spoil) -> None:  # type: ignore[no-untyped-def]
    rig = working()
    rig.brain.on_reply(spoil(chunk(rig.ask())), rig.now_s)
    assert rig.brain.refused[counter] == 1
    assert rig.tick().command is None


def test_a_lost_server_is_said_and_recovered_from() -> None:
    rig = working()
    rig.brain.on_reply(chunk(rig.ask()), rig.now_s)
    rig.tick(80, seen=False)
    assert rig.brain.state is RobotState.RECONNECTING and "s1" in rig.brain.reason
    held = rig.brain.held_ticks
    assert held > 0
    for _ in range(200):
        if opens := rig.tick().opens:
            break
    assert opens
    rig.brain.on_session_opened("system1", "s1", grant(6), rig.now_s)
    rig.brain.on_reply(chunk(rig.ask()), rig.now_s)
    assert rig.tick().command is not None and rig.brain.state is RobotState.STREAMING


def test_silence_of_a_server_that_claims_to_live_opens_the_session_anew() -> None:
    rig = working()
    opens = sum(bool(rig.tick().opens) for _ in range(120))
    assert opens >= 1 and rig.brain.refused["request_timeout"] >= 2


def test_old_sensor_readings_send_no_request() -> None:
    rig = Rig().connect()
    rig.brain.start(GOAL, rig.now_s)
    rig.now_s += 1
    rig.brain.on_server_status("s1", True, rig.now_s)
    assert rig.brain.tick(sensors(rig.now_s - 0.6), rig.now_s).requests == ()
    assert rig.brain.refused["old_observation"] == 1
    assert rig.brain.tick(None, rig.now_s).requests == ()


def test_an_older_schedule_is_refused() -> None:
    brain = RobotCore(CONFIG)
    assert brain.on_schedule(schedule(epoch=2), 0.0).is_accepted and not brain.on_schedule(schedule(epoch=1), 0.1).is_accepted
    assert brain.refused["stale_schedule"] == 1


def test_a_server_with_other_actions_is_not_used() -> None:
    rig = Rig()
    rig.brain.on_schedule(schedule(), 0.0)
    rig.tick()
    rig.brain.on_session_opened("system1", "s1", grant(contract=replace(CONTRACT, action_names=("y", "x"))), rig.now_s)
    rig.tick()
    assert rig.brain.state is RobotState.CONNECTING and "other actions" in rig.brain.reason


def verdict(rig: Rig, word: str) -> JudgeVerdict:
    request = RequestId(robot="r1", component="system1", session_epoch=5, episode=rig.brain.episode, sequence=0)
    return JudgeVerdict(id=request, stamp_ns=0, server="s1", model_hash="hash", verdict=word, score=1.0, text="", served=SERVED)


@pytest.mark.parametrize(("word", "outcome"), [("done", TaskOutcome.NONE), ("failed", TaskOutcome.JUDGED_FAILED)])
def test_two_equal_verdicts_end_a_task(word: str, outcome: TaskOutcome) -> None:
    rig = working()
    run = rig.brain.task
    assert run is not None
    for said in (word, "ongoing", word, word):
        assert run.result is None
        rig.brain._on_verdict("monitor", said, rig.now_s)
    assert rig.tick().command is None
    assert run.result is not None and run.result.outcome is outcome


def test_only_the_monitor_ends_a_task() -> None:
    rig = working()
    for _ in range(3):
        request = rig.ask()
        said = replace(verdict(rig, "done"), id=request.id)
        rig.brain.on_reply(said, rig.now_s)
    assert rig.brain.task is not None and rig.brain.task.verdict == ""


def test_without_a_new_state_nothing_is_commanded_blindly() -> None:
    rig = working()
    rig.brain.on_reply(chunk(rig.ask()), rig.now_s)
    rig.now_s += PERIOD_S
    assert rig.brain.tick(sensors(rig.now_s), rig.now_s, may_act=False).command is None
    assert rig.tick().command.tolist() == [0, 0]


def test_budget_reset_and_cancel_end_a_task() -> None:
    rig = Rig().connect()
    run = rig.brain.start(replace(GOAL, time_budget_s=1.0), rig.now_s)
    rig.tick(30)
    assert run.result is not None and run.result.outcome is TaskOutcome.BUDGET_SPENT
    rig.brain.finish()
    run = rig.brain.start(replace(GOAL, reset=True), rig.now_s)
    assert run.phase is TaskPhase.RESETTING and rig.tick().requests == ()
    run.reset_done(False, "stuck", rig.now_s)
    assert run.result is not None and run.result.outcome is TaskOutcome.RESET_FAILED
    rig.brain.finish()
    run = rig.brain.start(GOAL, rig.now_s)
    rig.brain.on_reply(chunk(rig.ask()), rig.now_s)
    rig.brain.cancel(TaskOutcome.CANCELED, "", rig.now_s)
    assert rig.tick().command is None, "stops within one control period"


class BrainMachine(RuleBasedStateMachine):
    """Any order of ticks, replies (late, doubled, reordered), losses and tasks keeps the promises."""

    num_commands = 0

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.rig.brain.on_schedule(schedule(), 0.0)
        self.sent: list[ObservationRequest] = []
        self.epoch = 10
        self.episode_of_value: dict[float, tuple[int, float]] = {}
        self.value = 100.0

    @rule(steps=st.integers(1, 40), seen=st.sampled_from([True, True, True, False]), answer=st.booleans(), work=st.booleans())
    def ticks(self, steps: int, seen: bool, answer: bool, work: bool) -> None:
        for _ in range(steps):
            if work:
                self.task()
            tick = self.rig.tick(seen=seen)
            self.sent += [request for _, request in tick.requests]
            if answer and tick.requests:
                self.reply(0)
            for server, _ in tick.opens:
                self.epoch += 1
                self.rig.brain.on_session_opened("system1", server, grant(self.epoch), self.rig.now_s)
            if tick.command is not None:
                episode, observed_s = self.episode_of_value[float(tick.command[0])]
                assert episode == self.rig.brain.episode, "an action of another episode"
                assert self.rig.now_s - observed_s <= CONFIG.max_action_age_s + 1e-9, "a stale action"
                assert self.rig.brain.executing
                type(self).num_commands += 1

    @rule(back=st.integers(0, 6))
    def reply(self, back: int) -> None:
        if len(self.sent) > back:
            request = self.sent[-1 - back]
            values = rows(self.value)
            self.value += 10
            for value in values[:, 0]:
                self.episode_of_value[float(value)] = (request.id.episode, request.stamp_ns * 1e-9)
            self.rig.brain.on_reply(chunk(request, values), self.rig.now_s)

    @initialize()
    def begin(self) -> None:
        self.task()

    @rule()
    def task(self) -> None:
        brain = self.rig.brain
        if brain.task is not None and brain.task.result is not None:
            brain.finish()
        if brain.task is None:
            brain.start(replace(GOAL, time_budget_s=1.0), self.rig.now_s)

    @rule()
    def lose(self) -> None:
        self.rig.brain.on_server_lost("s1", self.rig.now_s)

    @invariant()
    def one_in_flight(self) -> None:
        identities = [request.id for request in self.sent]
        assert len(set(identities)) == len(identities)
        link = self.rig.brain._clients.system1
        if link and link.pending:
            assert link.pending.id == self.sent[-1].id

    @invariant()
    def figures_are_sane(self) -> None:
        assert self.rig.brain.queue_depth >= 0
        assert math.isnan(self.rig.brain.staleness_s) or self.rig.brain.staleness_s >= 0


def test_the_promises_hold_in_any_order_of_events() -> None:
    effort = settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(BrainMachine, settings=effort)
    assert BrainMachine.num_commands > 100, "the machine hardly moved: its promises were not tested"


def test_what_follows_a_stop_at_once_is_as_slow_as_the_time_since_then_allows() -> None:
    limits = MotionLimits(lower=(-1.0,) * len(NAMES), upper=(1.0,) * len(NAMES), max_acceleration=(2.0,) * len(NAMES))
    zero = (Rung(Motion.ZERO),)
    rig = working(replace(CONFIG, command_type=CommandType.VELOCITY, limits=limits, fallback=zero))
    rig.brain.on_reply(chunk(rig.ask(), np.ones_like(rows())), rig.now_s)
    assert rig.tick().command is not None
    rig.brain.stop_command()
    rig.now_s -= 0.3 * PERIOD_S  # the next period comes early
    command = rig.tick().command
    assert command is not None and np.abs(command).max() <= 2.0 * 0.7 * PERIOD_S + 1e-6
