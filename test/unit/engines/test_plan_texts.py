"""What is read as a plan, and what is refused: a sentence about the task must never become a subgoal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.engines.text.plans import MAX_SUBGOAL_CHARACTERS, MAX_SUBGOALS, UnreadablePlan, read_plan

OPEN, PUT = "open the drawer", "put the cube in"


@pytest.mark.parametrize(
    "text",
    [
        f"{OPEN}\n{PUT}",
        f"1. {OPEN}\n2. {PUT}",
        f"1) {OPEN},\n2) {PUT}",
        f"(1) {OPEN}\n(2) {PUT}",
        f"- {OPEN}\n- {PUT}",
        f"a) {OPEN}\nb) {PUT}",
        f"I. {OPEN}\nII. {PUT}",
        f"1\ufe0f\u20e3 {OPEN}\n2\ufe0f\u20e3 {PUT}",
        f"\u2192 {OPEN}\n\u2192 {PUT}",
        f"subgoals:\n  - {OPEN}\n  - {PUT}",
        f"• {OPEN}\n• {PUT}",
        f"- [ ] {OPEN}\n- [ ] {PUT}",
        f"Step 1: {OPEN}\nStep 2: {PUT}",
        f"Step 1:\n{OPEN}\nStep 2:\n{PUT}",
        f"Subgoal 1 - {OPEN}\nSubgoal 2 - {PUT}",
        f"## Plan\n\n{OPEN}\n{PUT}",
        f"Plan: 1. {OPEN}\n2. {PUT}",
        f"Okay.\n{OPEN}\n{PUT}",
        f"Sure! Here is the plan:\n1. {OPEN}\n2. {PUT}\n\nLet me know if you need anything else!",
        f"Here are the remaining subgoals:\n\n1. **{OPEN}**\n2. **{PUT}**\n\nI hope this helps.",
        f"Here\u2019s the plan:\n1. {OPEN}\n2. {PUT}",
        f"```\n{OPEN}\n{PUT}\n```",
        f'["{OPEN}", "{PUT}"]',
        f"['{OPEN}', '{PUT}']",
        f'{{"subgoals": ["{OPEN}", "{PUT}"]}}',
        f'```json\n{{"subgoals": ["{OPEN}", "{PUT}"]}}\n```',
        f'Sure, here is the JSON:\n\n```json\n["{OPEN}", "{PUT}"]\n```\nLet me know if this helps.',
        f'Certainly. {{"subgoals": ["{OPEN}", "{PUT}"]}}',
        f'{{"reasoning": "the user wants order", "subgoals": ["{OPEN}", "{PUT}"]}}',
        f'{{"plan": {{"steps": ["{OPEN}", "{PUT}"]}}}}',
        f'{{"plan": [{{"step": 1, "action": "{OPEN}"}}, {{"step": 2, "action": "{PUT}"}}]}}',
        f'{{"remaining_subgoals": ["1. {OPEN}", "2. {PUT}"]}}',
        f'{{"1": "{OPEN}", "2": "{PUT}"}}',
        f'{{"step_2": "{PUT}", "step_1": "{OPEN}"}}',
        f'{{"subgoal": "{OPEN}"}}\n{{"subgoal": "{PUT}"}}',
        f'{{"subgoals": "1. {OPEN}\\n2. {PUT}"}}',
        f'[{{"subgoal": "lift", "status": "done"}}, {{"subgoal": "{OPEN}", "status": "pending"}}, {{"subgoal": "{PUT}"}}]',
    ],
)
def test_a_plan_in_any_of_its_forms(text: str) -> None:
    assert read_plan(text) == (OPEN, PUT)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"subgoals": []}',
        "```json\n[]\n```",
        '{"plan": [], "reason": "all is done"}',
        '{"subgoals": [{"subgoal": "lift", "done": true}]}',
        "none",
        "Nothing is left.",
        "Sure! Nothing is left.",
        "There are no subgoals left.",
        "The task is complete.",
    ],
)
def test_an_empty_list_means_that_nothing_is_left(text: str) -> None:
    assert read_plan(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "...",
        "42",
        "null",
        "safe",
        "Okay, the user wants the cup on the shelf.",
        "Okay, the user wants the cup on the shelf. Let me think:\n1. The cup is on the table.\n2. lift it",
        "Got it, the user wants me to plan.",
        "Wait, maybe I should look again",
        "First, I need to find the cup.\nThen pick it.",
        "The cup is on the table.\npick up the cup",
        "I think the robot should open the drawer first and then put the cube in.",
        "To put the cup on the shelf, the robot has to grasp it.",
        "Looking at the image, the drawer is closed.",
        "In the image, there is a cup.",
        "Thinking Process:\n\n1.  **Analyze the Request:**\n    * Task: put\n2.  **Plan:** lift",
        "Thought: the cup is far\nAction: reach",
        "1. open\n   - grasp\n   - pull",
        "1. open the drawer 2. put the cube in",
        "I'm sorry, I can't help with that.",
        "I\u2019m sorry, but I cannot see any images.",
        "Sure! I can help with that.",
        "As an AI language model, I cannot plan.",
        "Which drawer do you mean?",
        "Error: model overloaded",
        "<html><body>502 Bad Gateway</body></html>",
        "```python\nrobot.open()\n```",
        "open_drawer()",
        '{"subgoals": ["open the',
        '{"subgoals": null}',
        '{"subgoals": [1, 2]}',
        '{"subgoals": ["a"], "subgoals": ["b"]}',
        '{"steps": ["a"], "plan": ["b"]}',
        '{"subgoals": ["Okay, the user wants the cup."]}',
        '{"subgoals": ["the drawer is closed"]}',
        '{"action": "pick", "object": "cup"}',
        '[{"action": "pick", "object": "cup"}]',
        '[["open"], ["close"]]',
        '{"verdict": "safe"}',
        '{"type": "object", "properties": {"subgoals": {"type": "array"}}}',
        "{}",
        "[" * 5000,
        '{"a":' * 5000,
        '{"subgoals": ' * 6 + "[]" + "}" * 6,
        f'["{"x" * (MAX_SUBGOAL_CHARACTERS + 1)}"]',
        "go on\n" * (MAX_SUBGOALS + 1),
        f"```\n{OPEN}\n```\nor\n```\n{PUT}\n```",
    ],
)
def test_what_cannot_be_read_as_a_plan_is_refused(text: str) -> None:
    with pytest.raises(UnreadablePlan) as raised:
        read_plan(text)
    assert str(raised.value)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="ab1.-*:`{}[]\"',\n \\_", max_size=120))
def test_any_text_is_a_plan_or_refused(text: str) -> None:
    """And a subgoal is one line that says something."""
    try:
        subgoals = read_plan(text)
    except UnreadablePlan:
        return
    assert len(subgoals) <= MAX_SUBGOALS
    for subgoal in subgoals:
        assert subgoal == subgoal.strip() and "\n" not in subgoal and any(letter.isalpha() for letter in subgoal)
