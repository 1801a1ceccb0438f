"""Thoughts of text models, in every form in which models and servers publish them, are neither plan nor verdict."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.engines.reasoning import has_marks, parts_of
from ros2_rfm_serving.engines.text.answers import TextOptions, is_thinking, reply_of
from ros2_rfm_serving.engines.text.completion import Completion
from ros2_rfm_serving.errors import UnusableAnswerError
from ros2_rfm_serving.types import SAFETY, SYSTEM2

HARMONY = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")
FORMS = {
    "DeepSeek R1, Qwen3, GLM, MiniMax-M2": ("<think>\n", "\n</think>\n\n"),
    "Seed-OSS": ("<seed:think>", "</seed:think>"),
    "MiniMax-M3": ("<mm:think>", "</mm:think>"),
    "LongCat": ("<longcat_think>", "</longcat_think>"),
    "Hunyuan with tokens of its own": ("<think:opensource>", "</think:opensource>"),
    "EXAONE Deep": ("<thought>\n", "\n</thought>\n"),
    "Reflection": ("<thinking>", "</thinking>"),
    "LLaVA-CoT": ("<REASONING>", "</REASONING>"),
    "capitals and spaces": ("< Think >", "</ think >"),
    "escaped by a gateway": ("&lt;think&gt;", "&lt;/think&gt;"),
    "Magistral": ("[THINK]", "[/THINK]"),
    "Pangu": ("[unused16]", "[unused17]"),
    "Kimi": ("◁think▷", "◁/think▷"),
    "Kimi K3": ("<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>"),
    "gpt-oss": HARMONY,
    "gpt-oss with a form": (HARMONY[0], "<|end|><|start|>assistant<|channel|>final <|constrain|>JSON<|message|>"),
    "gpt-oss with a preamble": (HARMONY[0], f"<|end|><|start|>assistant<|channel|>commentary<|message|>I look first.{HARMONY[1]}"),
    "Gemma 4": ("<|channel>thought\n", "<channel|>"),
    "Cohere Command": ("<|START_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>"),
    "Apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "Inkling": ("<|message_model|><|content_thinking|>", "<|end_message|><|message_model|><|content_text|>"),
    "Solar Open": ("<|think|>", "<|end|><|begin|>assistant<|content|>"),
    "PLaMo": ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    "Open Thoughts": ("<|begin_of_thought|>", "<|end_of_thought|><|begin_of_solution|>"),
    "Granite 3.2": ("Here is my thought process: ", "\nHere is my response: "),
    "Open WebUI": ('<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 s</summary>\n', "\n</details>\n"),
    "Claude before it had thoughts": ("<antThinking>", "</antThinking>"),
    "a name of another kind": ("<rationale>", "</rationale>"),
    "a name of two words": ("<ThoughtProcess>", "</ThoughtProcess>"),
    "words for begin and end": ("<begin_think>", "<end_think>"),
    "words for begin and end, in brackets": ("[BEGIN_THINK]", "[END_THINK]"),
    "Chinese": ("<思考>", "</思考>"),
    "wide characters": ("\uff1cthink\uff1e", "\uff1c/think\uff1e"),
    "DeepSeek's bars": ("<\uff5cbegin\u2581of\u2581thought\uff5c>", "<\uff5cend\u2581of\u2581thought\uff5c>"),
    "a token for the answer": ("<|thinking|>", "<|response|>"),
    "another fence": ("~~~reasoning\n", "\n~~~\n"),
    "a fence": ("```thinking\n", "\n```\n"),
}
ENDS = (
    "",
    "<|im_end|>",
    "</s>",
    "<|return|>",
    "<|eot_id|>",
    "<turn|>",
    "<end_of_turn>\n",
    "<|im_end|>\n<|im_start|>user\nand now?",
)
THOUGHTS = (
    "Okay, the user wants the cup on the shelf.\n1. Find the cup.\n2. Lift it.",
    "safe",
    "",
    "Is it <b>safe</b>? unsafe",
    "{}",
)
PLAN = "1. open the drawer\n2. put the cube in"
JSON_PLAN = '{"subgoals": ["open the drawer", "put the cube in"]}'
OPTIONS = TextOptions()
form = pytest.mark.parametrize("begin,end", FORMS.values(), ids=FORMS)


def plan_of(text: str, *, ended: bool = True) -> list[str]:
    """Subgoals that a robot would get; none: none."""
    try:
        return reply_of(OPTIONS, SYSTEM2, Completion(text=text, ended=ended)).text.splitlines()
    except UnusableAnswerError:
        return []


def verdict_of(text: str, *, ended: bool = True) -> str:
    return reply_of(OPTIONS, SAFETY, Completion(text=text, ended=ended)).verdict


@form
@pytest.mark.parametrize("thought", THOUGHTS)
def test_what_stands_behind_thoughts_is_the_answer(begin: str, end: str, thought: str) -> None:
    for answer in (PLAN, JSON_PLAN):
        assert plan_of(f"{begin}{thought}{end}{answer}") == ["open the drawer", "put the cube in"]
    assert verdict_of(f"{begin}{thought}{end}safe") == "safe"
    assert verdict_of(f'{begin}{thought}{end}{{"verdict": "unsafe"}}') == "unsafe"


@form
def test_thoughts_without_an_end_are_an_answer_that_was_cut_off(begin: str, end: str) -> None:
    """Whatever the server says of the end, and whatever stood before them."""
    for text in (f"{begin}{THOUGHTS[0]}", f"{begin}safe", f"safe\n{begin}safe", f"{PLAN}\n{begin}{PLAN}"):
        for ended in (True, False):
            assert verdict_of(text, ended=ended) == "" and plan_of(text, ended=ended) == []
            assert "cut off" in reply_of(OPTIONS, SAFETY, Completion(text=text, ended=ended)).violation


@form
@pytest.mark.parametrize(
    "name", ["Open WebUI", "DeepSeek R1, Qwen3, GLM, MiniMax-M2", "Magistral", "Kimi", "a fence", "Cohere Command"]
)
def test_second_thoughts_take_an_answer_back(begin: str, end: str, name: str) -> None:
    """With thoughts before the answer as well, or without."""
    first, behind = FORMS[name][0], FORMS[name][1].removesuffix("<|START_RESPONSE|>")
    for text in (f"safe\n{first}No, unsafe: somebody is near.{behind}", f"{begin}a{end}safe\n{first}unsafe{behind}\n<|im_end|>"):
        assert verdict_of(text) == ""
    assert plan_of(f"{PLAN}\n{first}The user wants another cup.{behind}") == []


NO_OPENING = [name for name in FORMS if name not in ("a fence", "another fence", "Inkling", "Solar Open")]


@pytest.mark.parametrize("name", NO_OPENING)
def test_thoughts_whose_beginning_the_chat_template_wrote_are_thoughts(name: str) -> None:
    _, end = FORMS[name]
    assert plan_of(f"{THOUGHTS[0]}{end}{PLAN}") == ["open the drawer", "put the cube in"]
    assert verdict_of(f"safe{end}unsafe") == "unsafe"


@pytest.mark.parametrize(
    "text",
    [
        f"analysis{THOUGHTS[0]}assistantfinal{PLAN}",
        f"analysisWe look.assistantcommentaryThen.assistantfinal{JSON_PLAN}",
        f"<think>a</think><answer>\n{PLAN}\n</answer>",
        f"<SUMMARY>s</SUMMARY><CAPTION>c</CAPTION><REASONING>r</REASONING><CONCLUSION>{PLAN}</CONCLUSION>",
        f"<think>a <think>b</think> c</think>{PLAN}",
        f"<seed:think>a<seed:cot_budget_reflect>b</seed:cot_budget_reflect>c</seed:think>{PLAN}",
        f"<think/>{PLAN}",
        f"<think>a</think><plan>\n{PLAN}\n</plan>",
        f"<think></think>{PLAN}",
        f"</think>\n{PLAN}",
        f"{PLAN}<|im_end|>",
        f"<|im_start|>assistant\n{PLAN}<|im_end|>",
        f"<\uff5cAssistant\uff5c>{PLAN}<\uff5cend\u2581of\u2581sentence\uff5c>",
    ],
)
def test_other_compositions_that_servers_send(text: str) -> None:
    assert plan_of(text) == ["open the drawer", "put the cube in"]


@pytest.mark.parametrize(
    "text", ["analysisThe user wants the cup.", "thought\nThe user wants the cup.", "<think>safe</thought>safe"]
)
def test_thoughts_that_cannot_be_told_from_an_answer_are_none(text: str) -> None:
    assert plan_of(text) == [] and verdict_of(text) == ""


thoughts = st.text(alphabet="abc \n.'\"{}[]1", max_size=60) | st.sampled_from(THOUGHTS)


@settings(deadline=None, max_examples=200)
@given(
    blocks=st.lists(st.tuples(st.sampled_from(sorted(FORMS)), thoughts), max_size=3),
    template_opened=st.booleans(),
    answer=st.sampled_from([PLAN, JSON_PLAN, f"```json\n{JSON_PLAN}\n```"]),
    end=st.sampled_from(ENDS),
    cut=st.integers(0, 400),
)
def test_no_composition_of_thoughts_and_an_answer_lets_a_thought_through(
    blocks: list[tuple[str, str]], template_opened: bool, answer: str, end: str, cut: int
) -> None:
    """Whole, the answer is read; cut anywhere, there is none, for the server says so."""
    text = "".join(f"{FORMS[name][0]}{thought}{FORMS[name][1]}" for name, thought in blocks)
    if template_opened and blocks and blocks[0][0] in NO_OPENING:
        text = text.removeprefix(FORMS[blocks[0][0]][0])
    text += answer + end
    assert plan_of(text) == ["open the drawer", "put the cube in"]
    assert plan_of(text[:cut], ended=False) == []


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from([part for pair in FORMS.values() for part in pair] + list(ENDS) + ["safe", PLAN, "x"]), max_size=8))
def test_no_sequence_of_marks_leaves_a_mark_in_a_plan(parts: list[str]) -> None:
    text = "".join(parts)
    parts_of(text)
    assert not any(has_marks(subgoal) for subgoal in plan_of(text))


def test_a_field_of_its_own_for_thoughts_is_known_as_thinking() -> None:
    assert is_thinking(Completion(text="safe", ended=True, has_reasoning=True))
    assert is_thinking(Completion(text=f"<think>{'because ' * 20}</think>safe", ended=True))
    assert not is_thinking(Completion(text="<think>\n\n</think>\n\nsafe", ended=True)), (
        "as of a model whose thoughts are turned off"
    )
    assert not is_thinking(Completion(text=PLAN, ended=True))
