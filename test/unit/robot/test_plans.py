"""Plans of several subgoals, and what System 2 and the monitor are told about what became of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ros2_rfm_serving.faults import FaultPlan
from ros2_rfm_serving.robot import TaskGoal
from ros2_rfm_serving.robot.config import FailSafeConfig, RobotConfig, TaskPolicy
from ros2_rfm_serving.robot.history import MAX_EVENTS, MAX_FAILURES, ExecutionHistory
from ros2_rfm_serving.robot.task import SPENT
from ros2_rfm_serving.types import MAX_INSTRUCTION_CHARACTERS, Fallback, Reply, SubgoalPlan, TaskOutcome, TaskPhase
from test.unit.robot.robot_world import Sent, World
from test.unit.robot.robots import FAILING

FIRST, SECOND = "reach", "push"
POLICY = TaskPolicy(
    fallbacks={"safety": Fallback.STOP_AND_REPLAN, "system2": Fallback.USE_LAST_PLAN},
    max_task_retries=2,
    on_max_task_retries=Fallback.STOP_AND_CALL_HUMAN,
)
CONFIG = replace(
    FAILING,
    policy=POLICY,
    failsafe=FailSafeConfig(),
    calls_per_action={"system2": 0.1},
    prompts={"system2": "what is left?", "monitor": "done?", "safety": "clear?"},
)


class PlannedWorld(World):
    """System 2 plans by what it is told, and every prompt is kept."""

    def __init__(self, config: RobotConfig = CONFIG, *, slo_s: float = 0.3) -> None:
        slos_s = {"system1": 0.0, "system2": slo_s, "safety": 0.3, "monitor": 0.3}
        routes = {name: (100.0 if name == "system1" else 4.0, slo_s) for name, slo_s in slos_s.items()}
        super().__init__(config, FaultPlan(), 0, routes)
        self.prompts: dict[str, list[str]] = {name: [] for name in slos_s}
        self.plans: Callable[[str], tuple[str, ...]] = lambda prompt: (FIRST, SECOND)
        self.think_s = 0.0
        """That System 2 takes beyond the others' time."""
        self.brain.on_schedule(self.schedule(), self.now_s)
        self.brain.start(TaskGoal(task="t", instruction="both", time_budget_s=1000.0, reset=False), self.now_s)

    def answer(self, sent: Sent) -> Reply:
        answer = super().answer(sent)
        self.prompts[sent.request.id.component].append(sent.request.instruction)
        return replace(answer, subgoals=self.plans(sent.request.instruction)) if isinstance(answer, SubgoalPlan) else answer

    def _serve(self, sent: Sent) -> None:
        if self.think_s and sent.request.id.component == "system2":
            self.later(self.think_s, lambda: super(PlannedWorld, self)._serve(sent))
        else:
            super()._serve(sent)

    def run_until(self, what: Callable[[], bool]) -> None:
        for _ in range(400):
            if what():
                return
            self.run(0.05)
        raise AssertionError("waited in vain")


def test_the_monitors_done_leads_to_the_next_subgoal_and_the_last_ones_ends_the_task() -> None:
    made = PlannedWorld()
    made.run_until(lambda: made.brain.instruction == FIRST)
    made.plans = lambda prompt: (SECOND,) if f"{FIRST}: done" in prompt else (FIRST, SECOND)
    made.conditions.words["monitor"] = "done"
    made.run_until(lambda: made.brain.instruction == SECOND)
    assert made.brain.task is not None and made.brain.task.result is None
    made.conditions.words["monitor"] = "ongoing"
    made.run(3.0)
    assert made.brain.instruction == SECOND and made.brain.task.phase is TaskPhase.EXECUTING
    made.conditions.words["monitor"] = "done"
    made.run_until(lambda: made.brain.task is not None and made.brain.task.result is not None)
    assert made.brain.task.result is not None and made.brain.task.result.outcome is TaskOutcome.NONE


def test_a_verdict_about_one_subgoal_is_none_about_the_next() -> None:
    """Votes are equal verdicts in a row about the same thing: two for the first, and two more for the second."""
    made = PlannedWorld()
    made.run_until(lambda: made.brain.instruction == FIRST)
    made.conditions.words["monitor"] = "done"
    made.run_until(lambda: made.brain.instruction == SECOND)
    asked = len(made.prompts["monitor"])
    made.run_until(lambda: made.brain.task is not None and made.brain.task.result is not None)
    about = made.prompts["monitor"][asked:]
    assert len(about) >= CONFIG.verdict_votes and all(f"Now: {SECOND}." in prompt for prompt in about)


def test_system_2_and_the_monitor_are_told_the_history_and_safety_is_not() -> None:
    made = PlannedWorld()
    made.run(2.0)
    assert made.prompts["system2"][0].startswith("both. what is left? Attempt 1, ")
    assert f"Now: {FIRST}." in made.prompts["monitor"][-1] and made.prompts["monitor"][-1].startswith("both. done? Attempt 1, ")
    assert set(made.prompts["safety"]) == {"both. clear?"}


def test_an_objection_of_safety_is_told_to_system_2_and_the_robot_goes_on_by_its_new_plan() -> None:
    made = PlannedWorld()
    made.plans = lambda prompt: ("back off", SECOND) if "unsafe" in prompt else (SECOND,)
    made.run_until(lambda: made.brain.instruction == SECOND and made.brain.executing)
    made.conditions.words["safety"] = "unsafe"
    made.run(1.0)
    assert made.run(0.5)[-1] is None and f"{SECOND}: safety says 'unsafe'" in made.prompts["system2"][-1]
    made.conditions.words["safety"] = "safe"
    made.run_until(lambda: made.brain.executing)
    assert made.brain.instruction == "back off"


def test_a_failed_attempt_is_told_to_system_2_and_the_third_calls_a_person() -> None:
    made = PlannedWorld()
    made.plans = lambda prompt: ("other words",) if "failed" in prompt else (SECOND,)
    made.run_until(lambda: made.brain.instruction == SECOND and made.brain.executing)
    made.conditions.words["monitor"] = "failed"
    made.run_until(lambda: made.brain.retries == 1)
    made.conditions.words["monitor"] = "ongoing"
    made.run_until(lambda: made.brain.instruction == "other words")
    assert f"Before: {SECOND}: failed. Attempt 2, " in made.prompts["system2"][-1]
    made.conditions.words["monitor"] = "failed"
    made.run_until(lambda: made.brain.task is not None and made.brain.task.phase is TaskPhase.WAITING)
    assert made.brain.retries == 2 and "after 2 retries" in made.brain.stop_reason


def test_a_spent_budget_is_a_failed_attempt_that_system_2_is_told_of() -> None:
    made = PlannedWorld()
    made.brain.finish()
    run = made.brain.start(TaskGoal(task="t", instruction="both", time_budget_s=4.0, reset=True), made.now_s)
    made.plans = lambda prompt: ("other words",) if SPENT in prompt else (SECOND,)
    for attempt in range(POLICY.max_task_retries + 1):
        assert run.phase is TaskPhase.RESETTING and run.attempt == attempt and made.run(0.5)[-1] is None
        run.reset_done(True, "", made.now_s)
        made.run(3.5)
        assert run.phase is TaskPhase.EXECUTING and made.brain.instruction == ("other words" if attempt else SECOND)
        made.run(0.6)
    assert f"Before: {SECOND}: {SPENT}; other words: {SPENT}. Attempt 3, " in made.prompts["system2"][-1]
    assert run.result is not None and run.result.outcome is TaskOutcome.BUDGET_SPENT and run.result.retries == 2


def test_a_budget_that_is_spent_in_a_pause_resets_nothing() -> None:
    made = PlannedWorld()
    made.brain.finish()
    run = made.brain.start(TaskGoal(task="t", instruction="both", time_budget_s=2.0, reset=True), made.now_s)
    run.reset_done(True, "", made.now_s)
    made.run(1.0)
    made.brain.pause(made.now_s)
    made.run(1.5)
    assert run.result is not None and run.result.outcome is TaskOutcome.BUDGET_SPENT and run.attempt == 0


def test_a_late_system_2_goes_on_by_its_last_plan_to_the_next_subgoal_too() -> None:
    made = PlannedWorld()
    made.run_until(lambda: made.brain.instruction == FIRST and made.brain.executing)
    made.think_s = 1.0
    made.conditions.words["monitor"] = "done"
    made.run_until(lambda: made.brain.instruction == SECOND)
    made.conditions.words["monitor"] = "ongoing"
    late = made.brain.violations["system2_late"]
    commands = made.run(1.0)
    assert made.brain.executing and commands[-1] is not None
    made.run_until(lambda: made.brain.figures["system2"].late > late)
    assert made.brain.instruction in (FIRST, SECOND)


def test_answers_are_counted_by_component_in_time_or_late_with_their_words() -> None:
    made = PlannedWorld()
    made.run(5.0)
    figures = made.brain.figures
    assert figures["system1"].in_time > 10 and not figures["system1"].words and figures["system1"].late == 0
    assert figures["safety"].words["safe"] == figures["safety"].in_time > 5
    assert figures["system2"].words[FIRST] == figures["system2"].in_time > 1
    made.think_s, late = 1.0, figures["system2"].late
    made.run(5.0)
    assert figures["system2"].late > late == 0


def test_a_history_is_short_whatever_happens() -> None:
    history = ExecutionHistory()
    for attempt in range(20):
        for event in range(50):
            history.note(f"subgoal {event}", "done")
        history.note("same", "unsafe")
        history.note("same", "unsafe")
        told = history.text("now", 3.2, 15.0)
        assert told.count("done") == MAX_EVENTS - 1 and told.count("same: unsafe") == 1
        assert told.count("failed") == min(attempt, MAX_FAILURES) and told.endswith("Now: now.")
        history.retry("same", "failed")
    history.begin()
    assert history.text("", 3.2, 15.0) == "Attempt 1, 3/15 s."


def test_what_is_told_is_never_longer_than_a_server_takes() -> None:
    made = PlannedWorld(replace(CONFIG, prompts={"system2": "x" * MAX_INSTRUCTION_CHARACTERS}))
    made.run(1.0)
    assert {len(prompt) for prompt in made.prompts["system2"]} == {MAX_INSTRUCTION_CHARACTERS}


def test_a_component_that_no_server_serves_is_named_with_the_reason() -> None:
    made = PlannedWorld()
    made.conditions.opens = "contract"
    made.run(1.0)
    assert set(made.brain.refusals) == {"system1", "system2", "safety", "monitor"}
    assert all("refuses" in why for why in made.brain.refusals.values())
    made.conditions.opens = "granted"
    made.run_until(lambda: not made.brain.refusals)
