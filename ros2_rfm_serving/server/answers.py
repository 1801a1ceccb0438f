"""What may be sent of what an engine answered. Engines are foreign code: nothing that they give is taken on trust."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from ros2_rfm_serving.errors import BadMessageError, ModelError
from ros2_rfm_serving.types import Array, EngineReply, ModelContract


def checked(answer: object, contract: ModelContract) -> EngineReply:
    """With numpy's arrays. Raises: `BadMessageError` that says what is wrong with this row, and under which counter."""
    if isinstance(answer, ModelError):
        raise BadMessageError("engine_error", str(answer))
    if not isinstance(answer, EngineReply):
        raise _bad(f"{type(answer).__name__} in place of a reply")
    words: tuple[object, ...] = (answer.verdict, answer.text, answer.score, answer.execution_horizon)
    if not all(map(isinstance, words, (str, str, Real, int))):
        raise _bad("verdict and text must be text, score a number, execution_horizon a whole one")
    arrays = {name: _array(name, getattr(answer, name)) for name in ("chunk_model", "chunk_robot", "updates", "confidence")}
    _check_shapes(arrays, len(contract.action_names))
    for name in ("chunk_model", "chunk_robot"):
        if not np.isfinite(arrays[name]).all():
            raise BadMessageError("non_finite_output", f"{name} holds NaN or infinity")
    changed: dict[str, Any] = {name: array for name, array in arrays.items() if array is not getattr(answer, name)}
    return replace(answer, **changed) if changed else answer


def _array(name: str, values: object) -> Array:
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
            return np.asarray(values, np.float32)
    except Exception as error:  # a tensor on a device, a list of lists of other lengths, whatever converts itself
        raise _bad(f"{name} is no array of numbers: {type(error).__name__}: {error}") from error


def _check_shapes(arrays: dict[str, Array], columns: int) -> None:
    model, robot, updates, confidence = (arrays[name].shape for name in ("chunk_model", "chunk_robot", "updates", "confidence"))
    if columns and (len(robot) != 2 or robot[1] != columns or not robot[0] or model != robot):
        raise _bad(f"a chunk of shape {robot} (model space {model}) for {columns} actions")
    if arrays["updates"].size and (len(updates) != 3 or updates[1:2] != robot[:1]):
        raise _bad(f"updates of shape {updates} for a chunk of shape {robot}; [K, T, A] is")
    if arrays["confidence"].size and confidence != robot[:1]:
        raise _bad(f"a confidence of shape {confidence} for a chunk of shape {robot}")


def _bad(problem: str) -> BadMessageError:
    return BadMessageError("bad_output", problem)
