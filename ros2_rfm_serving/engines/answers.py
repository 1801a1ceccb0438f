"""The one way to ask an engine. Engines are foreign code: whatever they raise or return, only what is documented leaves here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.errors import EngineError, ModelError
from ros2_rfm_serving.types import Array, EngineReply, InferenceRequest, ModelContract

Answer = EngineReply | ModelError
FOREIGN = (Exception, SystemExit)
"""What foreign code may raise. `SystemExit` would end the thread that asks, and nothing else."""
ARRAYS = ("chunk_model", "chunk_robot", "updates", "confidence")


def answers_of(engine: Engine, requests: Sequence[InferenceRequest]) -> list[Answer]:
    """One per request, in order: a reply that the model's contract promises, or what is wrong with that row alone.

    Raises: `ModelError` when no row has an answer: the engine's own, or `EngineError` for anything else that it did.
    """
    answers = _asked(engine, requests)
    return [checked(engine.contract, answer) for answer in answers]


def _asked(engine: Engine, requests: Sequence[InferenceRequest]) -> list[Any]:
    """Raises: `ModelError`."""
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
    """One row's answer, or what is wrong with it."""
    if isinstance(answer, ModelError):
        return answer
    if not isinstance(answer, EngineReply):
        return EngineError(f"a row of {type(answer).__name__}; each is an EngineReply or a ModelError")
    try:
        return _as_promised(contract, answer)
    except EngineError as error:
        return error


def _as_promised(contract: ModelContract, answer: EngineReply) -> EngineReply:
    """Raises: `EngineError`."""
    if not (isinstance(answer.verdict, str) and isinstance(answer.text, str)):
        raise EngineError(f"verdict and text are words, not {type(answer.verdict).__name__} and {type(answer.text).__name__}")
    _check_horizon(answer.execution_horizon)
    arrays = {name: _array(name, getattr(answer, name)) for name in ARRAYS}
    _check_shapes(arrays, len(contract.action_names))
    changed: dict[str, Any] = {name: array for name, array in arrays.items() if array is not getattr(answer, name)}
    if type(answer.score) is not float:
        changed["score"] = _number(answer.score)
    return replace(answer, **changed) if changed else answer


def _check_horizon(rows: Any) -> None:
    """Raises: `EngineError`."""
    if not isinstance(rows, Integral) or int(rows) < 0:
        raise EngineError(f"execution_horizon is {rows!r}, not a number of rows")


def _check_shapes(arrays: dict[str, Array], columns: int) -> None:
    """Raises: `EngineError`."""
    model, robot, updates, confidence = (arrays[name].shape for name in ARRAYS)
    if columns and (len(robot) != 2 or robot[1] != columns or not robot[0] or model != robot):
        raise EngineError(f"a chunk of shape {robot} (model space {model}) for {columns} actions")
    if arrays["updates"].size and (len(updates) != 3 or updates[1:2] != robot[:1]):
        raise EngineError(f"updates of shape {updates} for a chunk of {robot}; they are [steps, *chunk], or empty")
    if arrays["confidence"].size and confidence != robot[:1]:
        raise EngineError(f"a confidence of shape {confidence} for a chunk of {robot}; it is one number for each row, or empty")


def _array(name: str, values: Any) -> Array:
    """As it is, or copied from what NumPy understands; a tensor on a device is not that. Raises: `EngineError`."""
    if isinstance(values, np.ndarray) and values.dtype == np.float32:
        return values
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
            return np.asarray(values, np.float32)
    except FOREIGN as error:
        where = f" on {device}" if (device := getattr(values, "device", None)) is not None else ""
        raise EngineError(f"{name} is a {type(values).__name__}{where} ({error}); return NumPy arrays of float32") from error


def _number(score: Any) -> float:
    """Raises: `EngineError`."""
    try:
        return float(score)
    except FOREIGN as error:
        raise EngineError(f"score is a {type(score).__name__}, not a number") from error
