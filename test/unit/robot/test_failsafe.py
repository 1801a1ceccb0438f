"""The fail-safe states: every transition, and what each parameter does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, pairwise

import pytest

from ros2_rfm_serving.robot.config import ComponentClientConfig, FailSafeConfig
from ros2_rfm_serving.robot.motion.failsafe import ALLOWED, Facts, FailSafe
from ros2_rfm_serving.types import RobotState, TaskOutcome
from test.unit.robot.robot_world import World
from test.unit.robot.robots import FAILING, FOREVER_S, begin, world


def lose(made: World) -> None:
    for name, server in made.servers.items():
        server.up = False
        made.brain.on_server_lost(name, made.now_s)


def return_(made: World, model_hash: str = "hash") -> None:
    for server in made.servers.values():
        server.restart(model_hash)
    made.advance(0.5)  # until they have said so


def latency(seconds: float) -> Callable[[World], None]:
    return lambda made: setattr(made.conditions, "latency_s", seconds)


def unschedule(made: World) -> None:
    made.routes.clear()
    made.brain.on_schedule(made.schedule(), made.now_s)


def skew(made: World) -> None:
    """Its cameras and its state are of different times: it may not ask, and nobody owes it an answer."""
    made.conditions.readings = "skewed"


def pause(made: World) -> None:
    made.brain.pause(made.now_s)


def cancel(made: World) -> None:
    made.brain.cancel(TaskOutcome.CANCELED, "", made.now_s)


ANSWER, SLOWLY, HANG = latency(0.03), latency(0.19), latency(FOREVER_S)
STORIES: dict[str, tuple[list[Callable[[World], None] | float], str]] = {
    "all is well": ([2.0], "CONNECTING STREAMING"),
    "a server is lost and returns": ([1.0, lose, 1.0, return_, 1.0], "CONNECTING STREAMING RECONNECTING STREAMING"),
    "no server returns in time": (
        [1.0, lose, 3.0, return_, 2.0],
        "CONNECTING STREAMING RECONNECTING DEAD CONNECTING STREAMING",
    ),
    "one that returned is lost again": (
        [1.0, lose, 3.0, return_, 0.1, lose, 0.5],
        "CONNECTING STREAMING RECONNECTING DEAD CONNECTING RECONNECTING",
    ),
    "there never was one": ([lose, 3.0], "CONNECTING DEAD"),
    "one that hangs": ([1.0, HANG, 0.9, ANSWER, 2.0], "CONNECTING STREAMING DEGRADED STALLED STREAMING"),
    "one that hangs for long": ([1.0, HANG, 3.0], "CONNECTING STREAMING DEGRADED STALLED RECONNECTING"),
    "one that is too slow, then is not": (
        [1.0, SLOWLY, 10.0, ANSWER, 60.0],
        "CONNECTING STREAMING DEGRADED STREAMING",
    ),
    "lost while it hangs": ([1.0, HANG, 0.5, lose, 0.1], "CONNECTING STREAMING DEGRADED RECONNECTING"),
    "paused while it hangs": ([1.0, HANG, 1.0, pause, 0.2], "CONNECTING STREAMING DEGRADED STALLED STREAMING"),
    "canceled while it hangs": ([1.0, HANG, 0.9, cancel, 0.1], "CONNECTING STREAMING DEGRADED STALLED DEGRADED"),
    "a task begins while it hangs": ([1.0, cancel, HANG, begin, 0.5], "CONNECTING STREAMING STALLED"),
    "dropped while all is well": ([1.0, unschedule, 0.1], "CONNECTING STREAMING CONNECTING"),
    "dropped while it hangs": ([1.0, HANG, 0.5, unschedule, 0.1], "CONNECTING STREAMING DEGRADED CONNECTING"),
    "nothing to ask with": ([1.0, skew, 2.0], "CONNECTING STREAMING STALLED"),
    "dropped while stalled": ([1.0, HANG, 1.0, unschedule, 0.1], "CONNECTING STREAMING DEGRADED STALLED CONNECTING"),
    "dropped while offline": ([1.0, lose, 0.5, unschedule, 0.1], "CONNECTING STREAMING RECONNECTING CONNECTING"),
    "dropped for good": ([1.0, unschedule, 3.0], "CONNECTING STREAMING CONNECTING DEAD"),
}


def told(steps: list[Callable[[World], None] | float]) -> World:
    made = world()
    for step in steps:
        if isinstance(step, float):
            made.run(step)
        else:
            step(made)
    return made


def path(made: World) -> list[RobotState]:
    return [state for state, _ in groupby([RobotState.CONNECTING, *made.states])]


@pytest.mark.parametrize("name", STORIES)
def test_a_story_and_its_states(name: str) -> None:
    steps, states = STORIES[name]
    made = told(steps)
    assert " ".join(state.name for state in path(made)) == states, made.brain.reason
    assert all(after in ALLOWED[before] for before, after in made.brain.state_changes)


def test_the_stories_are_about_every_transition_there_is() -> None:
    reached = {pair for steps, _ in STORIES.values() for pair in pairwise(path(told(steps)))}
    assert reached == {(before, after) for before, states in ALLOWED.items() for after in states}


# --- parameters ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degraded_after_s", [0.1, 0.3, 0.6])
def test_requests_have_to_fail_for_so_long(degraded_after_s: float) -> None:
    config = replace(
        FAILING, failsafe=FailSafeConfig(degraded_after_s=degraded_after_s), link=ComponentClientConfig(request_timeout_s=5.0)
    )
    made = world(config)
    made.run(1.0)
    HANG(made)
    while made.brain.state is not RobotState.DEGRADED:
        made.run(0.05)
        assert made.now_s < 3.0 and made.brain.state is not RobotState.STALLED
    (link,) = made.brain._clients.all
    assert made.now_s - link.unanswered_s == pytest.approx(degraded_after_s, abs=0.051)


@pytest.mark.parametrize(("max_offline_s", "dies"), [(1.0, True), (4.0, True), (0.0, False)])
def test_a_task_is_without_a_server_for_so_long(max_offline_s: float, dies: bool) -> None:
    made = world(replace(FAILING, failsafe=FailSafeConfig(max_offline_s=max_offline_s)))
    made.run(1.0)
    lose(made)
    made.run(10.0)
    assert (RobotState.DEAD in made.states) == dies
    if dies:
        assert made.states.index(RobotState.DEAD) * 0.05 == pytest.approx(1.0 + max_offline_s, abs=0.11)
        assert made.brain.task is not None and made.brain.task.result is not None
        assert made.brain.task.result.outcome is TaskOutcome.OFFLINE and "offline for" in made.brain.task.result.message


def test_a_robot_without_a_task_may_be_offline_for_ever() -> None:
    made = world()
    made.run(1.0)
    cancel(made)
    lose(made)
    made.run(30.0)
    assert made.brain.state is RobotState.RECONNECTING


def test_after_being_dead_it_connects_by_itself_and_takes_the_next_task() -> None:
    made = told([1.0, lose, 3.0, return_, 1.0])
    assert made.brain.state is RobotState.STREAMING and made.run(1.0)[-1] is None, "a new task is needed"
    begin(made)
    assert made.run(1.0)[-1] is not None


# --- another model --------------------------------------------------------------------------------------------------------------


def on_another_model() -> World:
    made = told([1.0, lambda one: return_(one, "other"), lose, 0.2, lambda one: return_(one, "other"), 1.0])
    assert made.brain.state is RobotState.DEAD and "other" in made.brain.reason
    assert made.brain.task is not None and made.brain.task.result is not None
    assert made.brain.task.result.outcome is TaskOutcome.OFFLINE
    return made


def test_another_model_is_never_taken_by_itself() -> None:
    made = on_another_model()
    made.run(20.0)
    assert made.brain.state is RobotState.DEAD and made.brain.refused["other_model"] > 1


def a_person_accepts_it(made: World) -> None:
    assert made.brain.resume(made.now_s) == ""


def a_schedule_means_it(made: World) -> None:
    made.brain.on_schedule(made.schedule(model="other"), made.now_s)


def the_right_one_returns(made: World) -> None:
    return_(made)


@pytest.mark.parametrize("leads_out", [a_person_accepts_it, a_schedule_means_it, the_right_one_returns])
def test_what_leads_out(leads_out: Callable[[World], None]) -> None:
    made = on_another_model()
    leads_out(made)
    made.run(2.0)
    assert made.brain.state is RobotState.STREAMING


def test_a_repeated_schedule_does_not_mean_another_model() -> None:
    made = on_another_model()
    made.brain.on_schedule(made.schedule(newer=False), made.now_s)
    made.brain.on_schedule(made.schedule(), made.now_s)
    made.run(2.0)
    assert made.brain.state is RobotState.DEAD


def test_a_pause_does_not_accept_another_model() -> None:
    made = told([1.0, pause, 0.1])
    made.brain.resume(made.now_s)
    return_(made, "other")
    lose(made)
    return_(made, "other")
    made.run(1.0)
    assert made.brain.state is RobotState.DEAD


def test_no_action_of_a_model_is_left_when_another_one_answers() -> None:
    made = told([1.0])
    assert made.brain.queue_depth > 0
    made.brain.on_schedule(made.schedule(model="other"), made.now_s)
    lose(made)
    return_(made, "other")
    made.conditions.latency_s = FOREVER_S
    made.run(0.1)
    assert made.brain.sessions and made.brain.queue_depth == 0


# --- alone ----------------------------------------------------------------------------------------------------------------------


def test_figures_of_a_state_that_lasts_ask_for_no_tick() -> None:
    """Bodies that tick when there is something to do would tick for ever."""
    made = FailSafe(FailSafeConfig(max_offline_s=1.0))
    stalled = Facts(
        scheduled=True,
        problem="",
        mismatch="",
        executing=True,
        connected=True,
        served=True,
        stalled_since_s=0.0,
        stalls_after_s=0.0,
        failing_since_s=math.inf,
        warning="",
        no_request="",
    )
    for now_s in (0.0, 1.0, 5.0):
        made.update(stalled._replace(served=now_s == 0.0), now_s)
    assert made.state is RobotState.STALLED and made.dead_s == math.inf
    assert made.reason == "no action for 5.0 s"
    made.update(stalled._replace(warning="97 % of the first 3 chunks' values are beyond the limits: the units are wrong"), 6.0)
    assert made.reason.startswith("no action for 6.0 s; 97 % of the first 3 chunks' values are beyond the limits")
