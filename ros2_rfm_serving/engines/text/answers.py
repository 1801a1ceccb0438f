"""Options, prompts, plans and verdicts that the engines of text models share. A verdict is exactly one of the declared words.

A judge's text that is none of its words is a *violation*: its verdict is empty, which no robot takes for "safe" (ROSA §3.3). A
planner's text that is no plan is refused. A model's thoughts are neither.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from ros2_rfm_serving.engines.reasoning import parts_of
from ros2_rfm_serving.engines.registry import EngineSpec
from ros2_rfm_serving.engines.text import plans as plan_text
from ros2_rfm_serving.engines.text.completion import Completion
from ros2_rfm_serving.engines.text.subgoals import UnreadablePlan
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ConfigurationError, ModelError, UnusableAnswerError
from ros2_rfm_serving.profiles import ContinuousService
from ros2_rfm_serving.types import (
    MONITOR,
    SAFETY,
    SYSTEM2,
    EncodedImage,
    EngineReply,
    Image,
    InferenceRequest,
    ModelContract,
    OutputKind,
)

CATALOGUE = "models.yaml"

MAX_CONCURRENT = 64
"""Default number of concurrent requests."""

MAX_TEXT_CHARACTERS = 4000
"""Largest number of characters of an answer; the rest is cut off, as if the model had been stopped there."""

MAX_WRITTEN_CHARACTERS = 100_000
"""Largest number of characters of a text with its thoughts: many times the length of the largest `max_tokens`."""

PLANNER = (
    "You plan for a robot. From its task and what its cameras show, answer with the subgoals that are left, in order, "
    "each of them a short imperative, and with nothing else."
)
JUDGE = "You watch a robot at work through its cameras and answer one question about what they show."
AS_JSON = f'Answer with JSON alone: {{"{plan_text.KEY}": ["first", "second"]}}, with an empty list when nothing is left.'
AS_LINES = "Answer with one subgoal per line, or with the word nothing when nothing is left."
THINKING_OFF = (
    "turn that off with `chat_template_kwargs: {enable_thinking: false}` (Qwen, GLM, Gemma; DeepSeek: {thinking: false}) or "
    "`extra: {reasoning_effort: none}` (Ollama, Mistral, OpenAI; gpt-oss knows no less than low) in the model's `options`"
)
"""Advice about a model that thinks, for the log and for errors."""


# --- options ---------------------------------------------------------------------------------------------------------------


def _for_all(verdicts: Any) -> Any:
    return {"*": verdicts} if isinstance(verdicts, list | tuple) else verdicts


Verdicts = Annotated[dict[str, tuple[str, ...]], BeforeValidator(_for_all)]


def without(ours: frozenset[str], further: dict[str, Any], why: str) -> dict[str, Any]:
    """Return `further` fields or arguments. Raises: `ValueError` if one of them is ours."""
    if taken := ours & further.keys():
        raise ValueError(f"{', '.join(sorted(taken))}: {why}")
    return further


class TextOptions(BaseModel):
    """`options` of a text model, for any engine that runs it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: str = ""
    """Name of the model where it runs, or a folder with weights; empty for the catalogue's name."""
    verdicts: Verdicts = {SAFETY: ("safe", "unsafe"), MONITOR: ("ongoing", "done", "failed")}
    """Words that a component may answer with, by component; a plain list is for all components."""
    system_prompt: str = ""
    """Prompt before every request; if empty, `PLANNER` for System 2 and `JUDGE` for all others."""
    max_tokens: int = Field(default=128, ge=1, le=4096)
    temperature: float | None = Field(default=0.0, ge=0.0, le=2.0)
    """Sampling temperature; None if it is not sent, for models that have one of their own."""
    seed: int | None = 0
    """Seed; None if it is not sent."""
    chat_template_kwargs: dict[str, Any] = {}
    """Variables of the model's chat template: `{enable_thinking: false}` turns off the thoughts of many models."""
    max_concurrent: int | None = Field(default=None, ge=1, le=1024)
    """Number of concurrent requests; by default that of the catalogue's service law, or 64."""

    @field_validator("verdicts")
    @classmethod
    def _words_differ(cls, verdicts: Verdicts) -> Verdicts:
        for component, words in verdicts.items():
            plain = [plainly(word) for word in words]
            if not all(plain) or len(set(plain)) < max(len(plain), 2):
                raise ValueError(f"{component}: give two words or more that differ in more than case and punctuation")
        return verdicts

    def words(self, component: str) -> tuple[str, ...]:
        """Return the words of a judge.
        component: empty for a blank request. Raises: `ModelError` if no words are declared for the component."""
        words = self.verdicts.get(component or next(iter(self.verdicts), "")) or self.verdicts.get("*")
        if not words:
            raise ModelError(f"no verdicts are declared for component {component!r}: add them to the model's `verdicts`")
        return words


LATER = frozenset({"chat_template_kwargs", "system_role"})
"""Options that were added later: without them a model keeps its earlier hash."""


def contract_of(spec: EngineSpec, options: TextOptions, *, apart_from: frozenset[str] = frozenset()) -> ModelContract:
    """Return the contract of a text model. The hash covers all options that shape an answer, so not those in `apart_from`; weights
    are identified by their name alone. Raises: `ConfigurationError` if the catalogue's entry is one of an action model."""
    output = OutputKind(spec.entry.output)
    if output is OutputKind.ACTION_CHUNK:
        raise ConfigurationError(
            f"{spec.entry.engine!r} runs text models",
            file=CATALOGUE,
            key=f"models.{spec.model}.output",
            fix="write `output: judgement`, or `output: plan` for a model of System 2 alone",
        )
    said = options.model_dump(mode="json", exclude=set(apart_from | (LATER - options.model_fields_set)))
    identity = json.dumps([spec.entry.engine, spec.model, said], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return ModelContract(
        model=spec.model, model_hash=digest, output=output, cameras=spec.entry.cameras, state_size=spec.entry.state_size
    )


def max_concurrent(spec: EngineSpec, options: TextOptions) -> int:
    """Return the number of concurrent requests, the same for the live server and for the simulated one.
    Raises: `ConfigurationError` if the descriptor has two numbers."""
    footprint = spec.entry.gpus.get(spec.gpu_type)
    law = footprint.service.law() if footprint and footprint.service else None
    simulated = law.max_concurrent if isinstance(law, ContinuousService) else None
    if options.max_concurrent and simulated and options.max_concurrent != simulated:
        raise ConfigurationError(
            f"is {options.max_concurrent}, gpus.{spec.gpu_type}.service.max_concurrent is {simulated}",
            file=CATALOGUE,
            key=f"models.{spec.model}.options.max_concurrent",
            fix="leave it out of the options, or say the same number in both",
        )
    return options.max_concurrent or simulated or MAX_CONCURRENT


# --- prompts ---------------------------------------------------------------------------------------------------------------


def plans(component: str) -> bool:
    """Return whether a component plans: System 2 does, all others judge."""
    return component == SYSTEM2


def system_prompt(options: TextOptions, component: str) -> str:
    return options.system_prompt or (PLANNER if plans(component) else JUDGE)


def question(options: TextOptions, request: InferenceRequest, *, as_json: bool) -> str:
    """Return the question: the robot's task, its component's prompt, and for a judge its words. as_json: form of a plan."""
    component = request.id.component
    if plans(component):
        return f"{request.instruction}\n{AS_JSON if as_json else AS_LINES}"
    return f"{request.instruction}\nAnswer with exactly one of: {', '.join(options.words(component))}."


def messages(
    options: TextOptions,
    contract: ModelContract,
    request: InferenceRequest,
    picture: Callable[[Image | EncodedImage], dict[str, Any]],
    *,
    as_json: bool,
) -> list[dict[str, Any]]:
    """Return a chat: each image, in the contract's order, after its camera's name, then the question.
    picture: makes a content part of an image."""
    content: list[dict[str, Any]] = []
    for camera in contract.cameras:
        content += [{"type": "text", "text": f"Camera {camera}:"}, picture(request.images[camera])]
    content.append({"type": "text", "text": question(options, request, as_json=as_json)})
    return [{"role": "system", "content": system_prompt(options, request.id.component)}, {"role": "user", "content": content}]


def first_request(contract: ModelContract, *, encoded: bool) -> InferenceRequest:
    """Return a request with blank images that warms a model up."""
    blank = warmup_request(contract, (224, 224), encoded=encoded)
    component = SYSTEM2 if contract.output is OutputKind.PLAN else ""
    return replace(blank, id=replace(blank.id, component=component), instruction="Stand still.")


# --- answers ---------------------------------------------------------------------------------------------------------------


def reply_of(options: TextOptions, component: str, completion: Completion, *, as_json: bool = False) -> EngineReply:
    """Return the meaning of a completion.
    as_json: plans are asked for by schema. Raises: `UnusableAnswerError` for a text that is no plan."""
    answer, problem = _answer_in(completion)
    if plans(component):
        return EngineReply(text="\n".join(_plan_in(answer, problem, as_json=as_json)))
    words = options.words(component)
    # "safe" that was cut off may have been about to become "safe only if ...".
    verdict = "" if problem else verdict_of(answer, words)
    if not verdict:
        problem = problem or f"it is none of {', '.join(words)}"
        return EngineReply(text=(answer or completion.text)[:MAX_TEXT_CHARACTERS], violation=problem)
    return EngineReply(verdict=verdict, text=answer, score=probability_of(verdict, completion.tokens))


def _answer_in(completion: Completion) -> tuple[str, str]:
    """Return the text without thoughts, and the problem that keeps it from being an answer; empty if there is none."""
    if len(completion.text) > MAX_WRITTEN_CHARACTERS:
        return "", f"it was cut off: it has more than {MAX_WRITTEN_CHARACTERS} characters"
    parts = parts_of(completion.text)
    thinks = parts.has_reasoning or completion.has_reasoning
    if completion.refusal:
        return parts.answer, "the model refused"
    if parts.is_cut_off or (thinks and not completion.ended and not parts.answer):
        return parts.answer, "it was cut off in its thoughts: raise `max_tokens`, or turn them off (`chat_template_kwargs`)"
    if parts.has_second_thoughts:
        return parts.answer, "thoughts stand behind the answer"
    if not completion.ended:
        return parts.answer, f"it was cut off ({completion.reason or 'by its limit'}): raise `max_tokens`"
    if len(parts.answer) > MAX_TEXT_CHARACTERS:
        return parts.answer, f"it was cut off: it has more than {MAX_TEXT_CHARACTERS} characters"
    if not parts.answer:
        return "", "there are thoughts and no answer: turn them off (`chat_template_kwargs`)" if thinks else "there is no text"
    return parts.answer, ""


def _plan_in(answer: str, problem: str, *, as_json: bool) -> tuple[str, ...]:
    """Return the subgoals of an answer. Raises: `UnusableAnswerError` if it is no plan."""
    if not problem:
        try:
            return plan_text.read_plan(answer, as_json=as_json)
        except UnreadablePlan as error:
            problem = str(error)
    shown = answer[:MAX_TEXT_CHARACTERS]
    raise UnusableAnswerError(f"the answer is no plan: {problem}", shown, is_cut_off="cut off" in problem)


def is_thinking(completion: Completion) -> bool:
    """Return whether the model thought before it answered; marks around nothing do not count."""
    parts = parts_of(completion.text)
    return (
        completion.has_reasoning or parts.is_cut_off or (parts.has_reasoning and len(completion.text) - len(parts.answer) > MARKS)
    )


def thinking_warning(model: str) -> str:
    return f"{model} thinks before it answers, within `max_tokens` and `timeout_s`; {THINKING_OFF}"


MARKS = 60
"""Number of characters of marks around no thoughts."""


_PAIRS = {'"': '"', "'": "'", "`": "`", "*": "*", "_": "_", "(": ")", "[": "]", "{": "}", "<": ">", "“": "”", "«": "»"}
_ENDINGS = (".", ",", ";", ":", "!")


def plainly(text: str) -> str:
    """Return a text in lower case with single spaces, without quotes or brackets around it and one mark at its end.
    `!safe`, `safe?` and `safe*` stay unchanged."""
    while True:
        text = text.strip()
        text = text[:-1].rstrip() if text.endswith(_ENDINGS) else text
        if len(text) < 2 or _PAIRS.get(text[0]) != text[-1]:
            return " ".join(text.split()).casefold()
        text = text[1:-1]


def verdict_of(text: str, words: Sequence[str]) -> str:
    """Return the one of `words` that `text` equals, plain or as `{"verdict": word}`; empty if it equals none."""
    said = plainly(_unwrapped(text))
    return next((word for word in words if plainly(word) == said), "")


def _unwrapped(text: str) -> str:
    """Return the text inside a fence, and inside a JSON object with the one key `verdict`."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "```" not in text[3:-3]:
        language, line_end, inside = text[3:-3].partition("\n")
        text = inside if line_end and language.strip().lower() in ("", "json", "text") else text
    try:
        match json.loads(text, object_pairs_hook=tuple):  # pairs: a key that occurs twice is no verdict
            case (("verdict", str(word)),):
                return word
    except (ValueError, RecursionError):
        pass  # no JSON: the word is the whole text
    return text


def probability_of(verdict: str, tokens: Sequence[tuple[str, float]]) -> float:
    """Return the probability of the tokens that the verdict is written in; NaN if they are not known."""
    start = "".join(token for token, _ in tokens).lower().rfind(verdict.lower()) if verdict else -1
    if start < 0:
        return math.nan
    total, position = 0.0, 0
    for token, logprob in tokens:
        if position < start + len(verdict) and position + len(token) > start:
            total += logprob
        position += len(token)
    return math.exp(min(total, 0.0))
