"""What text models write, and what their servers answer with."""

from __future__ import annotations

import json

from ros2_rfm_serving.engines.reasoning import has_marks
from ros2_rfm_serving.engines.text.answers import MAX_TEXT_CHARACTERS, TextOptions, reply_of
from ros2_rfm_serving.engines.text.chat_client import completion_of
from ros2_rfm_serving.engines.text.plans import MAX_SUBGOALS
from ros2_rfm_serving.errors import ModelError, UnusableAnswerError
from ros2_rfm_serving.types import SAFETY, SYSTEM2

PLAN = '{"subgoals": ["open the drawer", "put the cube in"]}'
TEXTS = (
    PLAN,
    f"<think>\nthe user wants order\n</think>\n\n{PLAN}",
    f"<|channel|>analysis<|message|>order<|end|><|start|>assistant<|channel|>final<|message|>{PLAN}<|return|>",
    "[THINK]order[/THINK]Sure! Here is the plan:\n\n1. open the drawer\n2. put the cube in\n",
    "```json\n[{'step': 1, 'action': 'open'}]\n```",
    '{"verdict": "safe"}',
)
OPTIONS = TextOptions()


def answer(text: str) -> bytes:
    logprobs = {"content": [{"token": "safe", "logprob": -0.1}]}
    content = [{"type": "thinking", "thinking": "x"}, {"type": "text", "text": text}]
    return json.dumps({"choices": [{"message": {"content": content}, "finish_reason": "stop", "logprobs": logprobs}]}).encode()


def seeds() -> list[bytes]:
    return [*(text.encode() for text in TEXTS), *map(answer, TEXTS)]


def check(data: bytes) -> None:
    """As a whole answer of a server, and as the text in one."""
    try:
        _check_text(completion_of(data).text)
    except ModelError as error:
        assert str(error)
    _check_text(data.decode(errors="replace"))
    assert _plan(PLAN) == ["open the drawer", "put the cube in"]


def _check_text(text: str) -> None:
    verdict = reply_of(OPTIONS, SAFETY, completion_of(answer(text)))
    assert verdict.verdict in ("", "safe", "unsafe") and bool(verdict.verdict) != bool(verdict.violation)
    assert len(verdict.text) <= MAX_TEXT_CHARACTERS
    subgoals = _plan(text)
    assert len(subgoals) <= MAX_SUBGOALS and not any(has_marks(subgoal) for subgoal in subgoals)


def _plan(text: str) -> list[str]:
    try:
        return reply_of(OPTIONS, SYSTEM2, completion_of(answer(text))).text.splitlines()
    except UnusableAnswerError as error:
        assert str(error)
        return []
