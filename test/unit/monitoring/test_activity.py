"""What a robot does and what is in its way, in the same words wherever it is shown; and what words exist."""

from __future__ import annotations

import pytest

from ros2_rfm_serving.monitoring.activity import activity, shown_state
from ros2_rfm_serving.monitoring.board import RobotRow
from ros2_rfm_serving.monitoring.explanations import EXPLANATIONS
from ros2_rfm_serving.types import RobotState, TaskOutcome, TaskPhase
from ros2_rfm_serving.types.outcome_text import OUTCOME_TEXTS, outcome_text


@pytest.mark.parametrize("state", [state.name for state in RobotState])
@pytest.mark.parametrize("phase", [phase.name.lower() for phase in TaskPhase])
def test_only_a_robot_that_streams_and_has_no_task_is_ready_and_idle(state: str, phase: str) -> None:
    assert (shown_state(state, phase) == "ready, idle") == (state == "STREAMING" and phase == "idle")


def test_a_robot_in_trouble_says_so_even_without_a_reason_of_its_own() -> None:
    for state in set(RobotState) - {RobotState.STREAMING}:
        told = activity(RobotRow(seen_s=1.0, state=state.name, phase="executing", task="push"), 1.0)
        assert told.state == state.name.lower() and told.level != "good" and told.does == "push"
        assert told.obstacle == EXPLANATIONS[told.help].meaning
    assert activity(RobotRow(seen_s=1.0, state="DEAD", reason="offline", phase="idle"), 1.0).obstacle == "offline"
    newer = activity(RobotRow(seen_s=1.0, state="9", phase="7"), 1.0)
    assert (newer.state, newer.level, newer.does) == ("9", "warning", "7"), "states of a newer wire are shown by their number"
    assert activity(RobotRow(), 1.0).obstacle == "not heard yet"
    assert activity(RobotRow(seen_s=1.0), 700.0).obstacle == "silent for 11 min"


def test_every_result_code_and_every_explanation_has_words() -> None:
    assert set(OUTCOME_TEXTS) == set(TaskOutcome)
    assert outcome_text(77).meaning == "ended with the code 77"
    for key, told in EXPLANATIONS.items():
        assert told.meaning and told.remedy, key
