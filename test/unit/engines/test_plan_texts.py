"""What is read as a plan, and what is refused: a sentence about the task must never become a subgoal."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.engines.text.plans import MAX_SUBGOALS, read_plan
from ros2_rfm_serving.engines.text.subgoals import MAX_SUBGOAL_CHARACTERS, UnreadablePlan

OPEN, PUT = "open the drawer", "put the cube in"


@pytest.mark.parametrize(
    "text",
    [
        f"{OPEN}\n{PUT}",
        f"1. {OPEN}\n2. {PUT}",
        f"1.{OPEN}\n2.{PUT}",
        f"**1.** {OPEN}\n**2.** {PUT}",
        f"**Step 1:** {OPEN}\n**Step 2:** {PUT}",
        f"### Step 1: {OPEN}\n### Step 2: {PUT}",
        f"Step one: {OPEN}\nStep two: {PUT}",
        f"Phase 1: {OPEN}\nPhase 2: {PUT}",
        f"Subgoal: {OPEN}\nSubgoal: {PUT}",
        f"First, {OPEN}\nThen, {PUT}",
        f"\u2460 {OPEN}\n\u2461 {PUT}",
        f"\u7b2c\u4e00\u6b65\uff1a{OPEN}\n\u7b2c\u4e8c\u6b65\uff1a{PUT}",
        f"\u2013 {OPEN}\n\u2013 {PUT}",
        f"1. {OPEN}\n2. {PUT}\n3. Done.",
        f"---\n1. {OPEN}\n2. {PUT}\n---",
        f"~~~\n{OPEN}\n{PUT}\n~~~",
        f'\ufeff["{OPEN}", "{PUT}"]',
        f'["{OPEN}", "{PUT}", "nothing"]',
        f"I'd be happy to help. Based on the images, the remaining subgoals are:\n1. {OPEN}\n2. {PUT}",
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
        f'[{{"subgoal": "lift", "status": "\u2713"}}, {{"subgoal": "{OPEN}", "completed": 0}}, {{"subgoal": "{PUT}"}}]',
        f'[{{"subgoal": "lift", "completed": 1}}, {{"subgoal": "{OPEN}"}}, {{"subgoal": "{PUT}", "status": "in_progress"}}]',
        f'{{"subgoals": ["lift (already done)", "[done] grasp", "{OPEN}", "{PUT}"]}}',
        f'{{"completed_steps": ["lift"], "next_steps": ["{OPEN}", "{PUT}"]}}',
        f'{{"objects": ["cup"], "plan": ["{OPEN}", "{PUT}"]}}',
        f'{{"materials": ["cup", "shelf"], "preconditions": ["the gripper is open"], "plan": ["{OPEN}", "{PUT}"]}}',
        f'{{"task_analysis": {{"cup": "red"}}, "steps": ["{OPEN}", "{PUT}"]}}',
        f'{{"right": ["wave"], "subgoals": ["{OPEN}", "{PUT}"]}}',
        f"- [x] lift\n- [ ] {OPEN}\n- [ ] {PUT}",
        f"1. ~~Lift~~\n2. {OPEN}\n3. {PUT}",
        f"1. Lift (done)\n2. Grasp - completed\n3. {OPEN}\n4. {PUT}",
        f"1. \u2705 lift\n2. {OPEN}\n3. {PUT}",
        f"\u2705 {OPEN}\n\u2705 {PUT}",
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
        "none left",
        "Nothing more to do.",
        "- [x] open the drawer\n- [x] put the cube in",
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
        '{"subgoals": ["open the drawer\\nput the cube in"]}',
        '{"left_arm_actions": ["raise the arm"], "right_arm_actions": ["lower the arm"]}',
        '{"actions": {"left": ["raise the arm"], "right": ["lower the arm"]}}',
        '{"actions": ["raise the arm"], "second_arm": ["lower the arm"]}',
        '{"actions": ["raise the arm"], "x": ' + "[" * 900 + "]" * 900 + "}",
        '{"plan": ["raise the arm"], "second_arm": {"first": {"do": "lower the arm"}}}',
        '{"remaining_risks": ["hit the table"]}',
        '{"next_failures": ["hit the table"], "left_objects": ["cup"]}',
        "1. Understand the task\n2. Identify the cup\n3. Generate the plan",
        "Need to find the cup",
        '{"steps": ["a"], "plan": ["b"]}',
        '{"subgoals": ["Okay, the user wants the cup."]}',
        '{"subgoals": ["the drawer is closed"]}',
        '{"subgoals": ["lift \\ud800 the cup"]}',
        '{"subgoals": ["lift \\u0000 the cup"]}',
        '{"subgoals": ["done", "lift"]}',
        "### Reasoning\nlift the cup",
        "open the drawer \u2192 put the cube in",
        "(1) open the drawer (2) put the cube in",
        "Step 1: open the drawer Step 2: put the cube in",
        "a) open the drawer b) put the cube in",
        "- open the drawer - put the cube in",
        "open the drawer; put the cube in",
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


THOUGHTS = """User wants the cup on the shelf
Current state: the cup is on the table
It seems that the cup fell
There's a cup on the table
This requires grasping
The gripper holds the cup
Both cameras show a table
Camera front shows a cup
The first step would be to lift the cup
Okay lift the cup
Since the cup fell, lift it
Unable to determine
Not sure what to do
Apologies for the confusion
Unclear what to lift
They want me to lift
Think about the cup
Rate limit exceeded
[object Object]
El usuario quiere la taza
Der Benutzer m\u00f6chte die Tasse
\u597d\u7684\uff0c\u7528\u6237\u60f3\u8981\u676f\u5b50
\u55ef\uff0c\u7528\u6237\u8981\u628a\u676f\u5b50\u653e\u5230\u67b6\u5b50\u4e0a""".splitlines()
IMPERATIVES = """ensure the gripper is open
make sure the drawer is closed
check whether the task is done
wait
wait for the user to leave
hand the cup to the user
pick up the cup that the user wants
ask the user which cup he wants
return to the home position
from the table, pick the cup
import the parts into the tray
lift the cup <10 cm
leave the door as is
put the 3-finger gripper down
pick up the 1.5 l bottle
put the screw in hole no. 3
if the drawer is closed, open it
\u6253\u5f00\u62bd\u5c49
\u00f6ffne die Schublade""".splitlines()


def as_items(item: str) -> list[str]:
    return [json.dumps({"subgoals": [item, PUT]}), f"1. {item}\n2. {PUT}", f"- {item}\n- {PUT}"]


@pytest.mark.parametrize("thought", THOUGHTS)
def test_a_thought_without_marks_is_no_subgoal_wherever_it_stands(thought: str) -> None:
    for text in [*as_items(thought), f"{thought}\n{PUT}", thought]:
        with contextlib.suppress(UnreadablePlan):
            assert not read_plan(text), text


@pytest.mark.parametrize("imperative", IMPERATIVES)
def test_an_imperative_that_resembles_a_thought_is_a_subgoal(imperative: str) -> None:
    for text in [*as_items(imperative), f"{imperative}\n{PUT}"]:
        assert read_plan(text) == (imperative, PUT)


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
