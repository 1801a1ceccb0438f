"""Training texts of the embedded planner and the stage monitor: prompts in the robot's format, and the answers.

The planner learns these rules, for tasks of one or two stages out of `TASKS`:

- the plan has the remaining subgoals in the task's own wording; a stage that is done is left out;
- after an objection of safety, the plan goes back one stage: the obstructed subgoal is approached anew;
- a stage that failed in a former attempt gets another wording.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ros2_rfm_serving.robot.history import ExecutionHistory
from ros2_rfm_serving.robot.task import DONE, FAILED
from ros2_rfm_serving.worlds.metaworld import STAGED_TASKS, TASKS, VISIT_THEN_PUSH

JOINTS = ("{}, then {}", "{} and then {}", "first {}, then {}", "{}. {}")
PLAN_PROMPTS = ("which subgoals are left?", "plan", "what comes next?", "")
MONITOR_PROMPTS = ("ongoing, done, or failed?", "is what it works on now ongoing, done, or failed?")
OBJECTIONS = ("safety says 'unsafe'", "safety says 'no'", "no verdict of safety in time")
SUBGOALS = tuple(text for task in TASKS.values() for text in task.instructions)
_STAGE_OF = {text: name for name, task in TASKS.items() for text in task.instructions}
MAX_ATTEMPTS, MAX_EVENTS = 4, 6


class PlannedTask(NamedTuple):
    text: str
    stages: tuple[str, ...]
    """Stages in the task's wording."""


@dataclass
class _Course:
    """Progress of a task by the rules."""

    stages: tuple[str, ...]
    at: int = 0
    """Index of the current stage."""

    def __post_init__(self) -> None:
        self.history, self.failures = ExecutionHistory(), [0] * len(self.stages)

    @property
    def plan(self) -> tuple[str, ...]:
        return tuple(self._wording(stage) for stage in range(self.at, len(self.stages)))

    def _wording(self, stage: int) -> str:
        said = self.stages[stage]
        words = TASKS[_STAGE_OF[said]].instructions
        return words[(words.index(said) + self.failures[stage]) % len(words)]

    def done(self) -> None:
        self.history.note(self.plan[0], DONE)
        self.at += 1

    def object(self, what: str) -> None:
        self.history.note(self.plan[0], what)
        self.at = max(0, self.at - 1)

    def fail(self) -> None:
        """Start the next attempt at the first stage."""
        self.history.retry(self.plan[0], FAILED)
        self.failures[self.at] += 1
        self.at = 0


def draw_task(rng: np.random.Generator) -> PlannedTask:
    names = rng.permutation(list(TASKS))[: 1 + (rng.random() < 0.8)]
    stages = tuple(str(rng.choice(TASKS[name].instructions)) for name in names)
    return PlannedTask(str(rng.choice(JOINTS)).format(*stages) if len(stages) > 1 else stages[0], stages)


def staged_task(rng: np.random.Generator) -> PlannedTask:
    """Return the two-stage task of the simulated arm in random wording."""
    stages = tuple(str(rng.choice(TASKS[name].instructions)) for name in STAGED_TASKS[VISIT_THEN_PUSH].stages)
    return PlannedTask(str(rng.choice(JOINTS)).format(*stages), stages)


def draw_lesson(rng: np.random.Generator) -> tuple[str, tuple[str, ...]]:
    """Return (prompt, plan)."""
    task = draw_task(rng)
    course, told = _course(task.stages, rng)
    return _prompt(task, str(rng.choice(PLAN_PROMPTS)), course, told, rng), course.plan


def draw_monitor_prompt(task: PlannedTask, stage: int, rng: np.random.Generator) -> str:
    """Return the monitor's prompt for a robot that works on this stage."""
    while True:
        course, _ = _course(task.stages, rng)
        if course.at == stage:
            return _prompt(task, str(rng.choice(MONITOR_PROMPTS)), course, course.plan[0], rng)


def _course(stages: tuple[str, ...], rng: np.random.Generator) -> tuple[_Course, str]:
    """Return a random point of a task, and the subgoal that the robot works on there: empty before the first plan of an attempt,
    and the old one just after an objection."""
    course, told = _Course(stages), ""
    for _ in range(int(rng.integers(0, MAX_EVENTS + 1))):
        told = course.plan[0]
        event = rng.random()
        if event < 0.5 and course.at < len(stages) - 1:
            course.done()
            told = course.plan[0]
        elif event < 0.75:
            course.object(str(rng.choice(OBJECTIONS)))
        elif event < 0.95 and sum(course.failures) < MAX_ATTEMPTS - 1:
            course.fail()
            told = ""
    return course, told if rng.random() < 0.7 or not told else course.plan[0]


def _prompt(task: PlannedTask, prompt: str, course: _Course, told: str, rng: np.random.Generator) -> str:
    return f"{task.text}. {prompt} {course.history.text(told, rng.uniform(0.0, 60.0), 60.0)}"
