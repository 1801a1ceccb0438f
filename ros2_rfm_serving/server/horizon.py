"""Execution horizons: how many actions of a chunk run before the next chunk takes over, by the model's confidence (Kairos §3.1).
Solver steps refine from coarse to fine: the model is unsure of an action that the last step still changed much."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import NamedTuple, Protocol

import numpy as np

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.types import NO_VALUES, Array, EngineReply, HorizonRequest


class HorizonDecision(NamedTuple):
    """Execution horizon and confidence of one chunk."""

    execution_horizon: int
    """Number of rows; 0: the robot's own horizon."""
    confidence: Array
    """[T], [0, 1]; empty: not known"""


NO_HORIZON_DECISION = HorizonDecision(0, NO_VALUES)


class HorizonPolicy(Protocol):
    """Rule for the execution horizon of a chunk."""

    min_updates: int = 0
    """Minimum number of observed solver steps from which it has a result."""

    def confidence(self, updates: Array) -> Array:
        """Return the confidence in each action, [B, T] in [0, 1], from the changes of each of the K solver steps, [B, K, T, A]."""
        return convergence(updates)

    def rows(self, confidence: Array, horizon: HorizonRequest) -> int:
        """Return how many rows of a chunk with this confidence ([T]; empty: not known) are executed; 0: the robot decides."""


class Static(HorizonPolicy):
    """Constant execution horizon."""

    def rows(self, confidence: Array, horizon: HorizonRequest) -> int:
        return max(horizon.steps, horizon.min_steps)


class Confidence(HorizonPolicy):
    """Horizon up to the first action whose last update exceeds (1 + t) times the mean of its earlier ones, and at least
    `min_steps`."""

    min_updates = 2

    def rows(self, confidence: Array, horizon: HorizonRequest) -> int:
        if not len(confidence):
            return 0
        unsure = confidence < 1.0 / (2.0 + horizon.threshold)
        return max(int(unsure.argmax()) if unsure.any() else len(confidence), horizon.min_steps)


class Curvature(HorizonPolicy):
    """Horizon up to the first action whose path through the solver bends by more than t, and at least `min_steps`.

    A flow is straight where the model knows the answer from the first step on. The bend is the distance of the answer from where
    the second step was heading, in model space, that is, in standard deviations of the action. It is absolute, whereas `confidence`
    compares updates with each other: small actions make no large ratios.
    """

    min_updates = 3

    def confidence(self, updates: Array) -> Array:
        return straightness(updates)

    def rows(self, confidence: Array, horizon: HorizonRequest) -> int:
        if not len(confidence):
            return 0
        bent = confidence < 1.0 / (1.0 + max(horizon.threshold, 0.0))
        return max(int(bent.argmax()) if bent.any() else len(confidence), horizon.min_steps)


HORIZON_POLICIES: dict[str, type[HorizonPolicy]] = {"static": Static, "confidence": Confidence, "curvature": Curvature}
ENTRY_POINTS = "ros2_rfm_serving.horizon"
"""Group of the entry points with which other packages add policies: classes that take no arguments."""


def convergence(updates: Array) -> Array:
    """Return the confidence c = m / (m + f) [B, T] of updates [B, K, T, A]: f is an action's last update, m the mean of its earlier
    ones.

    Updates count by magnitude. f > (1 + t) m is c < 1 / (2 + t). An action that never changed, such as one of a fixed prefix, has
    converged. A single step (K = 1) gives no information: [B, 0].
    """
    if updates.shape[1] < 2:
        return np.zeros((len(updates), 0), np.float32)
    magnitudes = np.sqrt(np.square(updates).sum(axis=-1))
    last, mean = magnitudes[:, -1], magnitudes[:, :-1].mean(axis=1)
    total = last + mean
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(total == 0, np.float32(1), mean / total)
    confidence: Array = np.nan_to_num(share, nan=0.0)
    return confidence


def straightness(updates: Array) -> Array:
    """Return 1 / (1 + bend), [B, T], of updates [B, K, T, A]; fewer than three steps cannot bend: [B, 0]."""
    if updates.shape[1] < 3:
        return np.zeros((len(updates), 0), np.float32)
    bend = np.sqrt(np.square((updates[:, 1:2] - updates[:, 2:]).sum(axis=1)).sum(axis=-1))
    straight: Array = np.nan_to_num(1.0 / (1.0 + bend), nan=0.0)
    return straight


def check(horizon: HorizonRequest) -> str:
    """Return the problem of a session's horizon and its fix; empty: there is none."""
    if not horizon.policy:
        return ""
    if problem := _problem_of(horizon.policy):
        return problem
    if horizon.min_steps < 1:
        return f"horizon_min_steps is {horizon.min_steps}; it must be at least 1"
    if horizon.policy == "static" and horizon.steps < 1:
        return f"horizon_steps is {horizon.steps}; it must be at least 1"
    if not (math.isfinite(horizon.threshold) and horizon.threshold > -1):
        return f"horizon_threshold is {horizon.threshold:g}; it must be above -1"
    return ""


def without_updates(horizon: HorizonRequest, num_updates: int | None) -> str:
    """Return the warning to a session whose policy gets no input from this model; empty: it does, or that is unknown."""
    needs = getattr(policy(horizon.policy), "min_updates", 0) if horizon.policy else 0
    if num_updates is None or num_updates >= needs:
        return ""
    seen = f"{horizon.policy!r} goes by {needs} or more solver steps, and this model tells of {num_updates}"
    return f"horizon_policy: {seen}: every chunk is executed as far as the robot's own horizon says"


def _problem_of(name: str) -> str:
    known = [*HORIZON_POLICIES, *(e.name for e in entry_points(group=ENTRY_POINTS))]
    if name not in known:
        return f"horizon_policy: the server has no {name!r}; {did_you_mean(name, known)}"
    try:
        policy(name)
    except (Exception, SystemExit) as error:  # a policy of another package may raise anything
        return f"horizon_policy: {name!r} cannot be made: {type(error).__name__}: {error}; mend the package that adds it"
    return ""


@cache
def policy(name: str) -> HorizonPolicy:
    """Return a policy by name; an empty name returns one that only computes the confidence. Raises: `ConfigurationError` if it is
    unknown."""
    if name in HORIZON_POLICIES:
        return HORIZON_POLICIES[name]()
    found = next((e for e in entry_points(group=ENTRY_POINTS) if e.name == name), None)
    if found is None:
        raise ConfigurationError(
            f"no horizon policy is named {name!r}", key="horizon_policy", fix=check(HorizonRequest(policy=name))
        )
    made: HorizonPolicy = found.load()()
    return made


def horizon_decisions(
    horizons: Sequence[HorizonRequest], answers: Sequence[EngineReply | None], on_fault: Callable[[str, str], None] | None = None
) -> list[HorizonDecision]:
    """Return one outlook per row, computed together for rows of one policy and shape. mishap: receives (counter, problem) when a
    policy fails; its rows are then executed as the robots decide. None: the error is raised."""
    found = [NO_HORIZON_DECISION] * len(answers)
    alike: defaultdict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for i, answer in enumerate(answers):
        if answer is None or not len(answer.chunk_robot):
            continue
        horizon = horizons[i]
        if answer.execution_horizon:  # set by the server that computed it
            found[i] = HorizonDecision(min(answer.execution_horizon, len(answer.chunk_robot)), answer.confidence)
        elif answer.confidence.size and not horizon.policy:
            found[i] = HorizonDecision(0, answer.confidence)
        elif answer.updates.size or horizon.policy:
            alike[horizon.policy, answer.updates.shape].append(i)
    for (name, _), rows in alike.items():
        known = [(horizons[i], answer) for i in rows if (answer := answers[i]) is not None]
        try:
            seen = _seen(name, known)
        except (Exception, SystemExit) as error:  # a policy may be foreign code
            if on_fault is None:
                raise
            on_fault("horizon_error", f"horizon policy {name!r}: {type(error).__name__}: {error}")
        else:
            for i, outlook in zip(rows, seen, strict=True):
                found[i] = outlook
    return found


def _seen(name: str, rows: Sequence[tuple[HorizonRequest, EngineReply]]) -> list[HorizonDecision]:
    """Return the outlooks of rows with the same policy and shape. Raises: `ValueError` for an impossible result of the policy."""
    chosen, empties = policy(name or "confidence"), [NO_VALUES] * len(rows)
    updates = [answer.updates for _, answer in rows]
    confidences = np.asarray(chosen.confidence(np.stack(updates)), np.float32) if updates[0].size else empties
    confidences = [answer.confidence if answer.confidence.size else own for own, (_, answer) in zip(confidences, rows, strict=True)]
    seen = []
    for (horizon, answer), confidence in zip(rows, confidences, strict=True):
        steps, length = operator.index(chosen.rows(confidence, horizon)) if name else 0, len(answer.chunk_robot)
        if steps < 0 or confidence.shape not in ((0,), (length,)):
            raise ValueError(f"{steps} rows, a confidence of shape {confidence.shape} for a chunk of {length}")
        seen.append(HorizonDecision(min(steps, length), confidence))
    return seen
