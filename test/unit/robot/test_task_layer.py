"""The task layer (ROSA §3.3) in a robot: what stops it, who lets it go on, what is tried again, and how it ends."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ros2_rfm_serving.robot import TaskGoal
from ros2_rfm_serving.robot.config import FailSafeConfig, TaskPolicy
from ros2_rfm_serving.robot.task import TaskRun
from ros2_rfm_serving.types import Fallback, RobotState, TaskOutcome, TaskPhase
from test.unit.robot.robot_world import Sent, World
from test.unit.robot.robots import FAILING, FOREVER_S, world

RESEND, LAST_PLAN, REPLAN, PERSON = (
    Fallback.STOP_AND_RESEND,
    Fallback.USE_LAST_PLAN,
    Fallback.STOP_AND_REPLAN,
    Fallback.STOP_AND_CALL_HUMAN,
)


def robot(fallbacks: dict[str, Fallback], *, slos_s: dict[str, float] | None = None, **changes: object) -> World:
    policy = TaskPolicy(fallbacks=fallbacks, **changes)  # type: ignore[arg-type]
    return world(replace(FAILING, policy=policy, failsafe=FailSafeConfig()), **(slos_s or {}))


def phase(made: World) -> TaskPhase:
    assert made.brain.task is not None
    return made.brain.task.phase


def outcome(made: World) -> TaskOutcome | None:
    assert made.brain.task is not None
    return made.brain.task.result.outcome if made.brain.task.result else None


def test_nothing_moves_before_safety_has_passed_it() -> None:
    made = robot({"safety": RESEND}, slos_s={"safety": 0.1})
    made.conditions.words["safety"] = "unsafe"
    assert all(command is None for command in made.run(2.0)) and phase(made) is TaskPhase.STOPPED
    made.conditions.words["safety"] = "safe"
    assert made.run(1.0)[-1] is not None


def test_a_warning_stops_it_at_once_and_discards_what_was_planned() -> None:
    made = robot({"safety": RESEND}, slos_s={"safety": 0.1})
    made.run(2.0)
    made.conditions.words["safety"] = "unsafe"
    stopped = made.run(0.5)
    assert stopped[-1] is None and made.brain.queue_depth == 0 and "unsafe" in made.brain.stop_reason


def test_what_was_asked_before_a_stop_is_not_executed_after_it() -> None:
    made = robot({"safety": RESEND}, slos_s={"safety": 0.5})
    made.run(2.0)
    made.conditions.latency_s = 0.3
    before = {"late_or_duplicate": made.brain.refused["late_or_duplicate"]}
    while not any(link.pending for link in made.brain._clients.all if link.component == "system1"):
        made.run(0.05)
    made.brain._task_rules.call_operator("look")
    made.run(0.5)
    assert made.brain.queue_depth == 0 and made.brain.refused["late_or_duplicate"] > before["late_or_duplicate"]
    made.brain.resume(made.now_s)
    assert made.run(0.2)[-1] is None, "it was planned from before the stop"


@pytest.mark.parametrize("component", ["safety", "monitor", "system2"])
def test_a_verdict_that_is_late_is_none_even_between_two_control_periods(component: str) -> None:
    made = robot({component: RESEND}, slos_s={component: 0.2})
    sent: list[Sent] = []
    for _ in range(40):
        made.advance(0.05)
        sent += [Sent(server, request, made.now_s, made.now_s, "hash") for server, request in made.tick().requests]
        if mine := [one for one in sent if one.request.id.component == component]:
            break
    answer = made.answer(mine[0])
    made.advance(0.21)
    assert not made.brain.on_reply(answer, made.now_s) and made.brain.violations[f"{component}_late"] == 1


def test_a_robot_asked_as_fast_as_it_answers_passes_again_and_again() -> None:
    made = robot({"safety": RESEND}, slos_s={"safety": 0.2})
    made.routes["safety"] = (math.inf, 0.2)
    made.brain.on_schedule(made.schedule(), made.now_s)
    made.conditions.latency_s = 0.15
    made.run(10.0)
    assert made.brain.violations == {} and phase(made) is TaskPhase.EXECUTING


def test_late_in_a_row_waits_for_a_person_who_lets_it_go_on() -> None:
    made = robot({"monitor": RESEND}, slos_s={"monitor": 0.2}, max_consecutive_slo_violation=2)
    made.conditions.latency_s = FOREVER_S
    made.run(3.0)
    assert phase(made) is TaskPhase.WAITING and "2 in a row" in made.brain.stop_reason
    made.conditions.latency_s = 0.03
    asked = len(made.sent_ids)
    made.run(5.0)
    assert phase(made) is TaskPhase.WAITING and len(made.sent_ids) == asked, "nobody is asked meanwhile"
    assert made.brain.resume(made.now_s) == ""
    assert made.run(1.0)[-1] is not None


def test_the_time_that_a_person_takes_is_not_taken_from_the_budget() -> None:
    made = robot({})
    assert made.brain.task is not None
    made.brain.task.budget_expires_s = 3.0
    made.run(1.0)
    made.brain._task_rules.call_operator("look")
    made.run(60.0)
    assert outcome(made) is None and made.brain.next_tick_s(made.now_s) > made.now_s
    made.brain.resume(made.now_s)
    made.run(1.5)
    assert outcome(made) is None
    made.run(1.0)
    assert outcome(made) is TaskOutcome.BUDGET_SPENT


def test_a_person_ends_it() -> None:
    made = robot({})
    made.run(1.0)
    made.brain._task_rules.call_operator("look")
    made.run(0.1)
    assert made.brain.abort(made.now_s) == "" and outcome(made) is TaskOutcome.ABORTED
    assert made.brain.abort(made.now_s) == "there is no task" and made.brain.resume(made.now_s)


def test_nobody_but_a_person_overrules_the_call_for_one() -> None:
    made = robot({}, slos_s={"monitor": 0.0}, max_task_retries=3)
    made.conditions.words["monitor"] = "failed"
    made.conditions.latency_s = 0.2
    while not any(link.pending for link in made.brain._clients.all if link.component == "monitor"):
        made.run(0.05)
    made.brain._task_rules.call_operator("look")
    assert made.brain.task is not None
    made.brain.task.judged("failed")  # the next word is the second
    made.run(1.0)
    assert phase(made) is TaskPhase.WAITING and made.brain.retries == 0


def test_another_model_does_not_move_a_robot_that_waits_for_a_person() -> None:
    made = robot({})
    made.run(1.0)
    made.brain._task_rules.call_operator("look")
    for name, server in made.servers.items():
        server.restart("other")
        made.brain.on_server_lost(name, made.now_s)
    made.run(3.0)
    assert made.brain.state is RobotState.DEAD and phase(made) is TaskPhase.WAITING


def test_a_failed_task_is_tried_again_with_a_reset_and_a_budget_of_its_own() -> None:
    made = robot({}, slos_s={"monitor": 0.0}, max_task_retries=1)
    made.brain.finish()
    run = made.brain.start(TaskGoal(task="t", instruction="go", time_budget_s=3.0, reset=True), made.now_s)
    made.conditions.words["monitor"] = "failed"
    episode = made.brain.episode
    run.reset_done(True, "", made.now_s)
    made.run(2.0)
    assert run.phase is TaskPhase.RESETTING and made.brain.retries == 1 and made.brain.episode == episode + 1
    made.run(5.0)
    assert run.result is None, "a reset has its own time"
    run.reset_done(True, "", made.now_s)
    made.run(2.5)
    assert run.result is not None and run.result.outcome is TaskOutcome.JUDGED_FAILED and run.result.retries == 1


def test_every_attempt_has_its_own_budget() -> None:
    made = robot({})
    made.brain.finish()
    run = made.brain.start(TaskGoal(task="t", instruction="go", time_budget_s=2.0, reset=False), made.now_s)
    made.run(1.5)
    run.retry(made.brain.episode, made.now_s)
    made.run(1.5)
    assert run.result is None
    made.run(1.0)
    assert outcome(made) is TaskOutcome.BUDGET_SPENT


# --- pause ----------------------------------------------------------------------------------------------------------------------


def test_a_paused_robot_asks_and_executes_nothing_and_then_begins_anew() -> None:
    made = robot({})
    made.run(1.0)
    asked = len(made.sent_ids)
    made.brain.pause(made.now_s)
    assert made.run(0.3) == [None] * 6 and len(made.sent_ids) == asked and made.brain.queue_depth == 0
    assert made.brain.resume(made.now_s) == "" and made.run(0.05) == [None], "hands may have been on it"
    assert len(made.sent_ids) == asked + 1 and made.run(0.2)[-1] is not None
    assert made.brain.resume(made.now_s) == "it is neither paused nor waiting for a person"


def test_a_mere_pause_accepts_no_other_model() -> None:
    made = robot({})
    made.run(1.0)
    made.brain.pause(made.now_s)
    for name, server in made.servers.items():
        server.restart("other")
        made.brain.on_server_lost(name, made.now_s)
    made.run(1.0)
    assert made.brain.resume(made.now_s) == "" and not any(command is not None for command in made.run(1.0))
    assert made.brain.state is RobotState.DEAD


def test_after_a_pause_safety_has_to_pass_it_again_and_nobody_was_late() -> None:
    made = robot({"safety": PERSON}, slos_s={"safety": 0.2}, max_consecutive_safety_replan=1)
    made.run(2.0)
    made.brain.pause(made.now_s)
    made.run(5.0)
    made.brain.resume(made.now_s)
    assert made.brain.violations == {} and "pause" in made.brain.stop_reason
    assert made.run(1.0)[-1] is not None


# --- the rest of the envelope ---------------------------------------------------------------------------------------------------


def test_a_late_plan_that_is_not_waited_for_settles_one_call() -> None:
    config = replace(FAILING, calls_per_action={"system2": 0.5}, policy=TaskPolicy(fallbacks={"system2": LAST_PLAN}))
    on_time, late = world(config, system2=0.5), world(config, system2=0.05)
    plans = []
    for made in (on_time, late):
        made.conditions.latency_s = 0.12
        made.run(20.0)
        plans.append(sum(getattr(identity, "component", "") == "system2" for identity in made.sent_ids))
    assert plans[1] == pytest.approx(plans[0], rel=0.1)


def test_an_answer_in_the_wrong_form_is_no_answer() -> None:
    made = robot({"safety": RESEND}, slos_s={"safety": 0.2})
    made.conditions.wrong_kind = 1.0
    made.run(3.0)
    assert made.brain.refused["unexpected_reply"] > 0 and made.brain.subgoal == ""


@pytest.mark.parametrize(("latency_s", "too_slow"), [(0.1, False), (0.19, True)])
def test_a_delay_beyond_what_the_model_bridges_is_waited_for_and_said(latency_s: float, too_slow: bool) -> None:
    """It was trained for 3 steps of 50 ms."""
    made = world()
    made.conditions.latency_s = latency_s
    made.run(5.0)
    assert (made.brain.state is RobotState.DEGRADED) == too_slow
    assert ("more than the 3 that the model can bridge" in made.brain.reason) == too_slow
    assert any(command is None for command in made.run(2.0)) == too_slow, "it holds while it waits"


def test_a_session_that_is_lost_while_it_opens_is_opened_again_whatever_else_is_late() -> None:
    made = robot({"monitor": REPLAN}, slos_s={"monitor": 0.1, "system2": 0.0})
    made.run(0.1)
    made.conditions.opens = "lost"
    for name in made.servers:
        made.brain.on_server_lost(name, made.now_s)
    made.run(1.0)
    made.brain._client.forget("system2")
    made.conditions.opens = "granted"
    made.run(8.0)
    assert {component for _, component, _ in made.brain.sessions} == {"system1", "system2", "monitor"}


def being_reset() -> tuple[World, TaskRun]:
    made = world()
    made.brain.cancel(TaskOutcome.CANCELED, "", made.now_s)
    made.brain.finish()
    run = made.brain.start(TaskGoal(task="t", instruction="go", time_budget_s=100.0, reset=True), made.now_s)
    made.run(0.1)
    run.reset_begins()
    return made, run


@pytest.mark.parametrize("ok", [True, False])
def test_a_task_that_ends_during_a_reset_ends_when_that_is_over(ok: bool) -> None:
    made, run = being_reset()
    made.brain.cancel(TaskOutcome.CANCELED, "canceled by the client", made.now_s)
    assert made.brain.stop_command() is None, "who resets the robot moves it alone"
    assert all(command is None for command in made.run(3.0)) and run.result is None
    made.brain.abort(made.now_s)
    run.reset_done(ok, "" if ok else "stuck", made.now_s)
    assert run.result is not None and run.result.outcome is TaskOutcome.CANCELED, "the first wish counts"
    made.brain.finish()
    made.brain.start(TaskGoal(task="t", instruction="go", time_budget_s=100.0, reset=False), made.now_s)
    made.run(1.0)
    assert made.brain.queue_depth > 0


def test_a_process_that_shuts_down_does_not_wait_for_a_reset() -> None:
    made, run = being_reset()
    made.brain.cancel(TaskOutcome.SHUTDOWN, "gone", made.now_s)
    assert run.result is not None and run.result.outcome is TaskOutcome.SHUTDOWN
