"""Text models: words, plans, and vLLM behind its import."""

from __future__ import annotations

import math
import sys
import types
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from ros2_rfm_serving.engines.registry import build_engine
from ros2_rfm_serving.engines.text import answers as text
from ros2_rfm_serving.engines.text.answers import Completion, TextOptions, probability_of, reply_of, verdict_of
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import MONITOR, SAFETY, SYSTEM2, InferenceRequest
from test.unit.engines.chat_server import only, request, spec

WORDS = ("safe", "unsafe")


# --- words and plans --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", ["safe", "Safe.", "  SAFE\n", "**safe.**", '"safe"', "<safe>", '{"verdict": "safe"}', '{ "verdict" : "Safe" }']
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


def test_a_subgoal_that_was_cut_off_never_reaches_a_robot() -> None:
    said = "open the drawer\nput the knife into the"
    assert reply_of(TextOptions(), SYSTEM2, Completion(text=said, ended=False)).text == "open the drawer"
    with pytest.raises(ModelError, match="cut off"):
        reply_of(TextOptions(), SYSTEM2, Completion(text="put the knife into the", ended=False))
    with pytest.raises(ModelError, match="no subgoal"):
        reply_of(TextOptions(), SYSTEM2, Completion(text=" \n", ended=True))
    endless = reply_of(TextOptions(), SYSTEM2, Completion(text="go on\n" * 10_000, ended=True))
    assert len(endless.text) <= text.MAX_TEXT_CHARACTERS


# --- vLLM -------------------------------------------------------------------------------------------------------------------


@dataclass
class Parameters:
    """`SamplingParams` and `StructuredOutputsParams` of the fake."""

    max_tokens: int = 0
    temperature: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    structured_outputs: Any = None
    choice: list[str] | None = None


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A `vllm` module whose model says what stands after `say:` in the question."""

    class LLM:
        def __init__(self, **arguments: Any) -> None:
            fake.arguments = arguments  # type: ignore[attr-defined]

        def chat(self, chats: list[Any], sampling: list[Parameters], use_tqdm: bool) -> list[Any]:
            fake.chats, fake.sampling = chats, sampling  # type: ignore[attr-defined]
            questions = [chat[1]["content"][-1]["text"] for chat in chats]
            if any("too long" in question for question in questions):
                raise ValueError("The decoder prompt is longer than the maximum model length")
            said = [question.partition("say:")[2].partition("\nAnswer")[0] for question in questions]
            return [types.SimpleNamespace(outputs=[self._written(word, p)]) for word, p in zip(said, sampling, strict=True)]

        def _written(self, word: str, sampling: Parameters) -> Any:
            entry = types.SimpleNamespace(logprob=math.log(0.5), decoded_token=word)
            logprobs = [{7: entry}] if sampling.logprobs is not None else None
            return types.SimpleNamespace(text=word, finish_reason="stop", token_ids=[7], logprobs=logprobs)

    fake, parameters = types.ModuleType("vllm"), types.ModuleType("vllm.sampling_params")
    fake.LLM, fake.SamplingParams = LLM, Parameters  # type: ignore[attr-defined]
    parameters.StructuredOutputsParams = Parameters  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", parameters)
    return fake


def decoded(component: str, instruction: str) -> InferenceRequest:
    return replace(request(component, instruction), images={"front": np.zeros((16, 24, 3), np.uint8)})


def test_vllm_runs_a_batch_with_each_components_own_words(fake_vllm: Any) -> None:
    model = build_engine(spec("vllm", model="Qwen/Qwen2.5-VL-3B-Instruct", llm={"max_model_len": 4096}))
    model.warm_up()
    answers = model.infer([decoded(SAFETY, "say:safe"), decoded(MONITOR, "say:safe"), decoded(SYSTEM2, "say:1. go\n2. stop")])
    safety, monitor, plan = (only([answer]) for answer in answers)
    assert (safety.verdict, safety.score, monitor.verdict, plan.text) == ("safe", pytest.approx(0.5), "", "go\nstop")
    kept = [p.structured_outputs.choice if p.structured_outputs else None for p in fake_vllm.sampling]
    assert kept == [["safe", "unsafe"], ["ongoing", "done", "failed"], None]
    assert fake_vllm.arguments == {
        "model": "Qwen/Qwen2.5-VL-3B-Instruct",
        "seed": 0,
        "max_num_seqs": 64,
        "limit_mm_per_prompt": {"image": 1},
        "max_model_len": 4096,
    }
    assert fake_vllm.chats[0][1]["content"][1]["image_pil"].size == (24, 16)


def test_vllm_runs_the_others_when_one_request_does_not_fit(fake_vllm: Any) -> None:
    model = build_engine(spec("vllm"))
    fits, long, nobody = model.infer([decoded(SAFETY, "say:unsafe"), decoded(SAFETY, "too long"), decoded("nobody", "say:safe")])
    assert only([fits]).verdict == "unsafe"
    assert isinstance(long, ModelError) and "does not take" in str(long)
    assert isinstance(nobody, ModelError) and "'nobody'" in str(nobody)


def test_vllm_that_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModelError, match=r"pip install 'ros2-rfm-serving\[vllm\]'"):
        build_engine(spec("vllm"))
