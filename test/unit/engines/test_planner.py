"""The embedded planner: what it says, what it learns, and what the shipped one answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.training.lessons import draw_lesson
from lab.training.optimizing import TrainingConfig
from lab.training.planner_training import Lesson, train_planner
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.engines.embedded.planner import SubgoalPlanner
from ros2_rfm_serving.engines.embedded.planner_network import END, PlannerConfig, PlannerNetwork
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.robot.history import ExecutionHistory
from ros2_rfm_serving.robot.task import SPENT
from ros2_rfm_serving.types import OutputKind

REACH, PUSH, SLIDE = "reach the red goal", "push the puck to the green goal", "slide the puck to the green mark"
TASK = f"{REACH}, then {PUSH}. which subgoals are left? "
SMALL = PlannerConfig(cameras=("front",), vocabulary=("<pad>", "<unknown>", "go", "stay"), subgoals=("go", "stay"), max_words=8)


def plan(engine: Engine, *prompts: str) -> list[list[str]]:
    blank = warmup_request(engine.contract)
    answers = engine.infer([replace(blank, instruction=prompt) for prompt in prompts])
    return [answer.text.splitlines() for answer in answers]  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def shipped(repository: Path) -> Engine:
    return load_embedded("planner", repository / "models" / "metaworld_planner")


def test_it_says_whole_subgoals_and_one_at_least_whatever_it_is_told() -> None:
    torch.manual_seed(0)
    engine = SubgoalPlanner("p", PlannerNetwork(SMALL).eval(), "hash")
    assert engine.contract.output is OutputKind.PLAN
    for said in plan(engine, "", "go", "stay go " * 20, "\0 ü 42"):
        assert 1 <= len(said) <= SMALL.max_subgoals and set(said) <= {"go", "stay"}


def test_nothing_follows_the_end_of_a_plan() -> None:
    network = PlannerNetwork(SMALL).eval()
    logits = torch.tensor(
        [[[0.0, 5.0, 1.0], [5.0, 0.0, 0.0], [0.0, 0.0, 5.0]], [[9.0, 0.0, 1.0], [0.0, 5.0, 0.0], [5.0, 0.0, 0.0]]]
    )
    network.forward = lambda words: logits.clone()  # type: ignore[method-assign]
    plans, probability = network.plan(torch.zeros(2, 8, dtype=torch.long))
    assert plans.tolist() == [[1, END, END], [2, 1, END]] and ((probability > 0) & (probability <= 1)).all()


def test_a_batched_row_is_the_row_alone(shipped: Engine) -> None:
    rng = np.random.default_rng(1)
    prompts = [draw_lesson(rng)[0] for _ in range(8)]
    assert plan(shipped, *prompts) == [plan(shipped, prompt)[0] for prompt in prompts]


def test_it_learns_from_its_lessons() -> None:
    last: dict[str, float] = {}
    lessons = [
        Lesson("go", ("go",)),
        Lesson("stay", ("stay",)),
        Lesson("go stay", ("go", "stay")),
        Lesson("stay go", ("stay", "go")),
    ]
    training = TrainingConfig(steps=150, batch_size=16, warm_up_steps=5, log_every=50, learning_rate=3e-3, ema_decay=0.9)
    train_planner(SMALL, lessons, lessons, training, last.update)
    assert last["plans_right"] == 1.0


def test_the_shipped_one_splits_a_task_and_leaves_out_what_is_done(shipped: Engine) -> None:
    history = ExecutionHistory()
    assert plan(shipped, TASK + history.text("", 0.0, 60.0)) == [[REACH, PUSH]]
    assert plan(shipped, TASK + history.text(REACH, 4.0, 60.0)) == [[REACH, PUSH]]
    history.note(REACH, "done")
    assert plan(shipped, TASK + history.text(PUSH, 4.0, 60.0)) == [[PUSH]]


def test_the_shipped_one_heeds_what_safety_objected_to(shipped: Engine) -> None:
    """One stage back, and forward again when that is done."""
    history = ExecutionHistory()
    history.note(REACH, "done")
    history.note(PUSH, "safety says 'unsafe'")
    assert plan(shipped, TASK + history.text(PUSH, 9.0, 60.0)) == [[REACH, PUSH]]
    assert plan(shipped, TASK + history.text(REACH, 10.0, 60.0)) == [[REACH, PUSH]]
    history.note(REACH, "done")
    assert plan(shipped, TASK + history.text(PUSH, 12.0, 60.0)) == [[PUSH]]


def test_the_shipped_one_tries_what_failed_in_other_words(shipped: Engine) -> None:
    history = ExecutionHistory()
    history.note(REACH, "done")
    history.retry(PUSH, "failed")
    assert plan(shipped, TASK + history.text("", 0.0, 60.0)) == [[REACH, SLIDE]]
    history.note(REACH, "done")
    assert plan(shipped, TASK + history.text(SLIDE, 5.0, 60.0)) == [[SLIDE]]


def test_the_shipped_one_takes_a_spent_budget_for_the_failure_that_it_is(shipped: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.training.lessons.FAILED", SPENT)
    rng = np.random.default_rng(5)
    lessons = [(prompt, wanted) for prompt, wanted in (draw_lesson(rng) for _ in range(400)) if SPENT in prompt]
    right = [said == list(wanted) for said, (_, wanted) in zip(plan(shipped, *(p for p, _ in lessons)), lessons, strict=True)]
    assert len(right) > 100 and np.mean(right) > 0.97


def test_the_shipped_one_is_right_on_new_lessons(shipped: Engine) -> None:
    rng = np.random.default_rng(123_456)
    lessons = [draw_lesson(rng) for _ in range(200)]
    right = [said == list(wanted) for said, (_, wanted) in zip(plan(shipped, *(p for p, _ in lessons)), lessons, strict=True)]
    assert np.mean(right) > 0.97
