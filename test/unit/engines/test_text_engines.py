"""Text models: words and plans."""

from __future__ import annotations

import math

import pytest

from ros2_rfm_serving.engines.text import answers as text
from ros2_rfm_serving.engines.text.answers import TextOptions, probability_of, reply_of, verdict_of
from ros2_rfm_serving.engines.text.completion import Completion
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import SAFETY, SYSTEM2

WORDS = ("safe", "unsafe")


# --- words and plans --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        "safe",
        "Safe.",
        "  SAFE\n",
        "**safe.**",
        '"safe"',
        "<safe>",
        '{"verdict": "safe"}',
        '{ "verdict" : "Safe" }',
        '```json\n{"verdict": "safe"}\n```',
        "```\nsafe\n```",
    ],
)
def test_a_word_is_known_by_itself_whatever_its_case_and_wrapping(said: str) -> None:
    assert verdict_of(said, WORDS) == "safe"


@pytest.mark.parametrize(
    "said",
    [
        "",
        "not safe",
        "safe, I think",
        "unsafe or safe",
        "safe unsafe",
        "!safe",
        "-safe",
        "~safe",
        "safe?",
        "safe*",
        "safe...",
        "<safe",
        "un(safe)",
        "safest",
        "in safe",
        '{"verdict": "safe", "but": "unsafe"}',
        '{"verdict": "unsafe", "verdict": "safe"}',
        '{"verdict": ["safe"]}',
        '{"verdict": "fine"}',
        "```\nsafe\n```\nunsafe",
        "```python\nsafe\n```",
        "```safe```unsafe```",
        "[" * 100_000,
    ],
)
def test_anything_else_is_no_verdict(said: str) -> None:
    assert verdict_of(said, WORDS) == ""


def test_a_verdict_that_was_cut_off_is_none() -> None:
    """It may have been about to become "safe only if nobody comes nearer"."""
    reply = reply_of(TextOptions(), SAFETY, Completion(text="safe", ended=False))
    assert (reply.verdict, reply.text) == ("", "safe")


def test_the_score_is_the_probability_of_the_words_own_tokens() -> None:
    tokens = (('{"', -9.0), ("verdict", -9.0), ('": "', -9.0), ("un", math.log(0.5)), ("safe", math.log(0.5)), ('"}', -9.0))
    assert probability_of("unsafe", tokens) == pytest.approx(0.25)
    assert math.isnan(probability_of("unsafe", ()))
    assert math.isnan(probability_of("", tokens))


def test_a_plan_has_one_bare_subgoal_per_line() -> None:
    said = "Here is the plan:\n\n1. Open the drawer\n 2) **pick up the 2 red cubes**\n- move 1.5 cm left\nStep 4: close it"
    reply = reply_of(TextOptions(), SYSTEM2, Completion(text=said, ended=True))
    assert reply.text.splitlines() == ["Open the drawer", "pick up the 2 red cubes", "move 1.5 cm left", "close it"]


@pytest.mark.parametrize("said", ["open the drawer\nput the knife into the", "put the knife into the", '{"subgoals": ["open the'])
def test_a_plan_that_was_cut_off_is_none(said: str) -> None:
    """Its end might change its sense, and thoughts without marks that were cut off look like one."""
    with pytest.raises(ModelError, match=r"cut off.*max_tokens"):
        reply_of(TextOptions(), SYSTEM2, Completion(text=said, ended=False))
    with pytest.raises(ModelError, match="no text"):
        reply_of(TextOptions(), SYSTEM2, Completion(text=" \n", ended=True))
    with pytest.raises(ModelError, match=f"more than {text.MAX_TEXT_CHARACTERS} characters"):
        reply_of(TextOptions(), SYSTEM2, Completion(text="go on\n" * 10_000, ended=True))
