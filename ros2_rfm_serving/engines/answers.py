"""The one way to ask an engine. Engines are foreign code: whatever they raise or return, only what is documented leaves here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.errors import EngineError, ModelError
from ros2_rfm_serving.types import Array, EngineReply, InferenceRequest, ModelContract

Answer = EngineReply | ModelError


def answers_of(engine: Engine, requests: Sequence[InferenceRequest]) -> list[Answer]:
    """One per request, in order: a reply that the model's contract promises, or what is wrong with that row alone.

    Raises: `ModelError` when no row has an answer: the engine's own, or `EngineError` for anything else that it did.
    """
    answers = _asked(engine, requests)
    return [_checked(engine.contract, answer) for answer in answers]


def _asked(engine: Engine, requests: Sequence[InferenceRequest]) -> list[Any]:
    """Raises: `ModelError`."""
    try:
        answers = list(engine.infer(requests))
    except ModelError:
        raise
    except Exception as error:
        raise EngineError(f"{type(error).__name__}: {error}") from error
    if len(answers) != len(requests):
        model, given = engine.contract.model, len(answers)
        raise EngineError(f"{model!r} gave {given} answers to {len(requests)} requests: one for each, in order")
    return answers


def _checked(contract: ModelContract, answer: Any) -> Answer:
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
    model, robot = _array("chunk_model", answer.chunk_model), _array("chunk_robot", answer.chunk_robot)
    updates, columns = _array("updates", answer.updates), len(contract.action_names)
    if columns and (robot.ndim != 2 or robot.shape[1] != columns or model.shape != robot.shape):
        raise EngineError(f"a chunk of shape {robot.shape} (model space {model.shape}) for {columns} actions")
    if updates.size and (updates.ndim != 3 or updates.shape[1] != len(robot)):
        raise EngineError(f"updates of shape {updates.shape} for a chunk of {model.shape}; they are [steps, *chunk], or empty")
    arrays = {"chunk_model": model, "chunk_robot": robot, "updates": updates}
    changed: dict[str, Any] = {name: array for name, array in arrays.items() if array is not getattr(answer, name)}
    if type(answer.score) is not float:
        changed["score"] = _number(answer.score)
    return replace(answer, **changed) if changed else answer


def _array(name: str, values: Any) -> Array:
    """As it is, or copied from what NumPy understands; a tensor on a device is not that. Raises: `EngineError`."""
    if isinstance(values, np.ndarray) and values.dtype == np.float32:
        return values
    try:
        return np.asarray(values, np.float32)
    except Exception as error:
        where = f" on {device}" if (device := getattr(values, "device", None)) is not None else ""
        raise EngineError(f"{name} is a {type(values).__name__}{where} ({error}); return NumPy arrays of float32") from error


def _number(score: Any) -> float:
    """Raises: `EngineError`."""
    try:
        return float(score)
    except Exception as error:
        raise EngineError(f"score is a {type(score).__name__}, not a number") from error
