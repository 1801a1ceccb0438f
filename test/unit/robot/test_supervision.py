"""The task layer's rules (ROSA §3.3): late answers, warnings, failures, and people."""

from __future__ import annotations

import math

import pytest

from ros2_rfm_serving.robot.config import TaskPolicy
from ros2_rfm_serving.robot.task_rules import TaskRules
from ros2_rfm_serving.types import Fallback, TaskOutcome
from test.unit.robot.robot_world import COMPONENTS

RESEND, LAST_PLAN, REPLAN = Fallback.STOP_AND_RESEND, Fallback.USE_LAST_PLAN, Fallback.STOP_AND_REPLAN
SAFE_STATE, PERSON = Fallback.RETURN_TO_SAFE_STATE, Fallback.STOP_AND_CALL_HUMAN


def rules(fallbacks: dict[str, Fallback], **changes: object) -> TaskRules:
    made = TaskRules(TaskPolicy(fallbacks=fallbacks, **changes))  # type: ignore[arg-type]
    made.serve(COMPONENTS)
    if made.supervises_safety:
        made.on_safety_verdict("safe", math.inf)
    return made


def waits_for(made: TaskRules) -> set[str]:
    return {name for name in COMPONENTS if name in made._waits_for}


# --- one late answer ------------------------------------------------------------------------------------------------------------

LATE = [
    # component, fallback, waits for, stops, to the safe pose, a person
    ("system1", RESEND, set(), False, False, False),  # its rows bridge it
    ("system1", LAST_PLAN, set(), False, False, False),
    ("system1", REPLAN, {"system1", "system2"}, True, False, False),
    ("system1", SAFE_STATE, {"system1"}, True, True, False),
    ("system1", PERSON, set(), True, False, True),
    ("system2", RESEND, {"system2"}, True, False, False),
    ("system2", LAST_PLAN, set(), False, False, False),
    ("system2", REPLAN, {"system2"}, True, False, False),
    ("system2", SAFE_STATE, {"system2"}, True, True, False),
    ("system2", PERSON, set(), True, False, True),
    ("safety", RESEND, {"safety"}, True, False, False),
    ("safety", LAST_PLAN, {"safety"}, True, False, False),  # a pass that is too old is none
    ("safety", REPLAN, {"safety", "system2"}, True, False, False),
    ("safety", SAFE_STATE, {"safety"}, True, True, False),
    ("safety", PERSON, set(), True, False, True),
    ("monitor", RESEND, {"monitor"}, True, False, False),
    ("monitor", LAST_PLAN, set(), False, False, False),
    ("monitor", REPLAN, {"monitor", "system2"}, True, False, False),
    ("monitor", SAFE_STATE, {"monitor"}, True, True, False),
    ("monitor", PERSON, set(), True, False, True),
]


@pytest.mark.parametrize(
    ("component", "fallback", "awaited", "stops", "to_pose", "person"), LATE, ids=[f"{c}-{f.value}" for c, f, *_ in LATE]
)
def test_a_late_answer(component: str, fallback: Fallback, awaited: set[str], stops: bool, to_pose: bool, person: bool) -> None:
    made = rules({component: fallback})
    made.on_late(component)
    assert (bool(made.stopped), made.to_safe_pose, made.needs_operator) == (stops, to_pose, person), made.stopped
    assert waits_for(made) == awaited and made.violations[f"{component}_late"] == 1
    for name in sorted(awaited):
        assert made.stopped, "until all of them have answered in time"
        if name == "safety":
            made.on_safety_verdict("safe", math.inf)
        else:
            made.on_reply(name)
    assert bool(made.stopped) == person and not made.to_safe_pose


def test_a_component_without_a_fallback_may_be_late() -> None:
    made = rules({"system1": RESEND})
    for _ in range(10):
        made.on_late("monitor")
    assert not made.stopped and not made.violations


def test_system1_is_told_the_new_plan() -> None:
    made = rules({"system1": REPLAN})
    made.on_late("system1")
    assert made.is_requested("system2") and not made.is_requested("system1")
    made.on_reply("system2")
    assert made.is_requested("system1")


def test_nobody_waits_for_a_plan_where_nobody_plans() -> None:
    made = rules({"system1": REPLAN})
    made.serve({"system1"})
    made.on_late("system1")
    assert waits_for(made) == {"system1"} and not made.wants_plan


def test_one_that_is_no_longer_scheduled_is_not_waited_for() -> None:
    made = rules({"monitor": RESEND, "safety": RESEND})
    made.on_late("monitor")
    made.on_late("safety")
    made.serve({"system1"})
    assert waits_for(made) == {"safety"} and made.stopped, "safety is, whatever the schedule says"


# --- many of them ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "component"), [(1, "system1"), (3, "system2"), (3, "safety"), (4, "monitor")])
@pytest.mark.parametrize(("then", "outcome"), [(PERSON, None), (SAFE_STATE, TaskOutcome.LATE)])
def test_too_many_in_a_row(most: int, component: str, then: Fallback, outcome: TaskOutcome | None) -> None:
    made = rules({component: RESEND}, max_consecutive_slo_violation=most, on_max_violation=then)
    for _ in range(most - 1):
        made.on_late(component)
        assert not made.needs_operator and made.ending is None
    made.on_late(component)
    assert made.needs_operator == (then is PERSON) and (made.ending and made.ending[0]) == outcome
    assert f"{most} in a row" in made.stopped
    made.on_late(component)
    assert made.violations[f"{component}_late"] == most, "it is decided"


def test_an_answer_in_time_begins_the_row_anew() -> None:
    made = rules({"system1": RESEND}, max_consecutive_slo_violation=2)
    for _ in range(5):
        made.on_late("system1")
        made.on_reply("system1")
    assert not made.needs_operator


def test_warnings_and_late_verdicts_are_one_row() -> None:
    made = rules({"safety": RESEND}, max_consecutive_safety_replan=3)
    made.on_safety_verdict("unsafe", math.inf)
    made.on_late("safety")
    assert not made.needs_operator
    made.on_safety_verdict("unsafe", math.inf)
    assert made.needs_operator and "3 in a row" in made.stopped


@pytest.mark.parametrize("word", ["unsafe", "", "unsure", "not safe", "safe?"])
def test_every_word_that_is_no_pass_is_a_warning(word: str) -> None:
    made = rules({"safety": RESEND})
    made.on_safety_verdict(word, math.inf)
    assert waits_for(made) == {"safety"} and made.violations["unsafe"] == 1


@pytest.mark.parametrize("word", ["safe", " Safe ", "OK", "yes"])
def test_a_pass_lets_it_go_on(word: str) -> None:
    made = rules({"safety": RESEND})
    made.on_safety_verdict("unsafe", math.inf)
    made.on_safety_verdict(word, 5.0)
    assert not made.stopped and made.pass_expires_s == 5.0


def test_a_pass_ends() -> None:
    made = rules({"safety": RESEND})
    made.on_safety_verdict("safe", 5.0)
    assert not made.pass_ended(4.9) and made.pass_ended(5.0) and made.stopped
    assert not made.pass_ended(6.0) and made.violations["unsafe"] == 1, "once"


def test_unsupervised_safety_is_not_listened_to() -> None:
    made = rules({})
    made.on_safety_verdict("unsafe", 1.0)
    assert not made.stopped and made.pass_expires_s == math.inf


@pytest.mark.parametrize(("then", "outcome"), [(PERSON, None), (SAFE_STATE, TaskOutcome.JUDGED_FAILED)])
def test_retries_are_used_up(then: Fallback, outcome: TaskOutcome | None) -> None:
    made = rules({}, max_task_retries=2, on_max_task_retries=then)
    assert [made.failed(tried, "it failed") for tried in range(3)] == [True, True, False]
    assert made.needs_operator == (then is PERSON) and (made.ending and made.ending[0]) == outcome
    assert made.stopped == "it failed after 2 retries"


def test_the_first_end_counts_and_a_person_who_is_not_needed_any_more_is_not() -> None:
    made = rules({})
    made.call_operator("why")
    made.end_safely(TaskOutcome.OFFLINE, "offline")
    made.end_safely(TaskOutcome.LATE, "late")
    assert made.ending == (TaskOutcome.OFFLINE, "offline") and not made.needs_operator
