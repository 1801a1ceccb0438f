"""Calls of an engine with validation of its answers.

Engines are foreign code: whatever they raise or return, only documented results leave this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.reasoning import has_marks
from ros2_rfm_serving.errors import EngineError, ModelError, UnusableAnswerError
from ros2_rfm_serving.types import NO_PHASES, SYSTEM2, Array, EnginePhases, EngineReply, InferenceRequest, ModelContract, OutputKind

Answer = EngineReply | ModelError
FOREIGN = (Exception, SystemExit)
"""Exceptions that foreign code may raise. `SystemExit` would end the calling thread, and nothing else."""
ARRAYS = ("chunk_model", "chunk_robot", "updates", "confidence")
FLOAT32 = np.dtype(np.float32)


def answers_of(engine: Engine, requests: Sequence[InferenceRequest]) -> list[Answer]:
    """Return one answer per request, in order: a reply that keeps to the model's contract, or the error of that row alone.

    Raises: `ModelError` if no row has an answer: the engine's own, or `EngineError` for any other misbehaviour.
    """
    answers = _asked(engine, requests)
    if computes_nothing(engine):
        return answers
    contract = engine.contract
    found = [checked(contract, answer) for answer in answers]
    if contract.output is OutputKind.ACTION_CHUNK:
        return found
    return [_without_thoughts(request.id.component, answer) for request, answer in zip(requests, found, strict=True)]


def _without_thoughts(component: str, answer: Answer) -> Answer:
    """Return a text model's answer, or an error if it holds thoughts: with any engine, they are neither plan nor verdict."""
    if isinstance(answer, ModelError):
        return answer
    if component == SYSTEM2:
        return UnusableAnswerError("the plan holds the model's thoughts", answer.text) if has_marks(answer.text) else answer
    if answer.verdict and has_marks(answer.verdict):
        return replace(answer, verdict="", text=answer.text or answer.verdict, violation="it holds the model's thoughts")
    return answer


def computes_nothing(engine: Engine) -> bool:
    """Return whether the engine is an emulated one, whose answers cannot be wrong."""
    return getattr(engine, "computes_nothing", False)


def _asked(engine: Engine, requests: Sequence[InferenceRequest]) -> list[Any]:
    """Return the unchecked answers of an engine. Raises: `ModelError` if it fails or gives another number of answers."""
    try:
        answers = list(engine.infer(requests))
    except ModelError:
        raise
    except FOREIGN as error:
        raise EngineError(f"{type(error).__name__}: {error}") from error
    if len(answers) != len(requests):
        model, given = engine.contract.model, len(answers)
        raise EngineError(f"{model!r} gave {given} answers to {len(requests)} requests: one for each, in order")
    return answers


def checked(contract: ModelContract, answer: Any) -> Answer:
    """Return one row's answer, or the error that describes what is wrong with it."""
    if isinstance(answer, ModelError):
        return answer
    if not isinstance(answer, EngineReply):
        return EngineError(f"a row of {type(answer).__name__}; each is an EngineReply or a ModelError")
    try:
        return _as_promised(contract, answer)
    except EngineError as error:
        return error


def _can_be_sent(text: str) -> bool:
    """Return whether a text can be sent in a message: JSON may name half a character (`\\ud800`), which Python keeps."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_promised(contract: ModelContract, answer: EngineReply) -> EngineReply:
    """Return an answer with arrays of float32. Raises: `EngineError` if it does not keep to the contract."""
    if not (isinstance(answer.verdict, str) and isinstance(answer.text, str) and isinstance(answer.violation, str)):
        raise EngineError(f"verdict and text are words, not {type(answer.verdict).__name__} and {type(answer.text).__name__}")
    if not all(map(_can_be_sent, (answer.verdict, answer.text))):
        raise EngineError("verdict or text has half a character, which no message can hold")
    if type(answer.execution_horizon) is not int or answer.execution_horizon < 0:
        _check_horizon(answer.execution_horizon)
    if answer.phases is not NO_PHASES:
        _check_phases(answer.phases)
    changed: dict[str, Any] = {}
    for name in ARRAYS:
        values = getattr(answer, name)
        if type(values) is not np.ndarray or values.dtype is not FLOAT32:
            changed[name] = _array(name, values)
    if type(answer.score) is not float:
        changed["score"] = _number(answer.score)
    answer = replace(answer, **changed) if changed else answer
    _check_shapes(answer.chunk_model, answer.chunk_robot, answer.updates, answer.confidence, len(contract.action_names))
    return answer


def _check_horizon(rows: Any) -> None:
    """Check an execution horizon. Raises: `EngineError` if it is not a number of chunk steps."""
    if not isinstance(rows, Integral) or int(rows) < 0:
        raise EngineError(f"execution_horizon is {rows!r}, not a number of rows")


def _check_phases(phases: Any) -> None:
    """Check the durations of phases. Raises: `EngineError` if they are not finite, or not `EnginePhases`."""
    if isinstance(phases, EnginePhases) and isinstance(phases.solver_steps, int) and phases.solver_steps >= 0:
        seconds = (phases.perception_s, phases.solver_s)
        if all(isinstance(took, float) and 0 <= took < float("inf") for took in seconds):
            return
    raise EngineError(f"phases are {str(phases)[:100]}; they are Phases of two durations in s and a number of steps")


def _check_shapes(model: Array, robot: Array, updates: Array, confidence: Array, columns: int) -> None:
    """Check shapes: chunks [T, A], updates [K, T, A] or empty, confidence [T] or empty. Raises: `EngineError` for any other."""
    chunk = robot.shape
    if columns and (len(chunk) != 2 or chunk[1] != columns or not chunk[0] or model.shape != chunk):
        raise EngineError(f"a chunk of shape {chunk} (model space {model.shape}) for {columns} actions")
    if updates.size and (updates.ndim != 3 or updates.shape[1:2] != chunk[:1]):
        raise EngineError(f"updates of shape {updates.shape} for a chunk of {chunk}; they are [steps, *chunk], or empty")
    if confidence.size and confidence.shape != chunk[:1]:
        problem = f"a confidence of shape {confidence.shape} for a chunk of {chunk}"
        raise EngineError(f"{problem}; it is one number for each row, or empty")


def _array(name: str, values: Any) -> Array:
    """Return values as they are, or copied from any type that NumPy understands, which a tensor on a device is not.
    Raises: `EngineError` if NumPy cannot convert them."""
    if isinstance(values, np.ndarray) and values.dtype == np.float32:
        return values
    try:
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are refused as such
            return np.asarray(values, np.float32)
    except FOREIGN as error:
        where = f" on {device}" if (device := getattr(values, "device", None)) is not None else ""
        raise EngineError(f"{name} is a {type(values).__name__}{where} ({error}); return NumPy arrays of float32") from error


def _number(score: Any) -> float:
    """Return a score as a float. Raises: `EngineError` if it is not a number."""
    try:
        return float(score)
    except FOREIGN as error:
        raise EngineError(f"score is a {type(score).__name__}, not a number") from error
