"""Protection against faults of foreign policies: if one raises or loses a request, the batch is served first come, first served."""

from __future__ import annotations

import enum
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ros2_rfm_serving.dispatch.base import DispatchPolicy, EngineView
from ros2_rfm_serving.dispatch.dispatcher import is_policy_class
from ros2_rfm_serving.dispatch.fifo import FifoPolicy
from ros2_rfm_serving.dispatch.history import TaskHistory
from ros2_rfm_serving.dispatch.waiting_request import WaitingRequest
from ros2_rfm_serving.errors import RfmError, UnrecordableError

FIFO = FifoPolicy()
ATOMS = frozenset({type(None), bool, int, float, str, bytes})
SEQUENCES = frozenset({list, tuple, set, frozenset})
"""Collections that a recording can keep of a policy; mappings, deques, arrays and enumerations are kept, too."""


class CheckedPolicy(DispatchPolicy):
    """Policy that reports faults of another one to `on_fault`, as (counter, problem), and falls back to FIFO."""

    def __init__(self, policy: DispatchPolicy, on_fault: Callable[[str, str], None]) -> None:
        self._policy, self._on_fault = policy, on_fault

    @property
    def READS_EXECUTIONS(self) -> bool:  # type: ignore[override]
        """Return the value of the guarded policy."""
        return self._policy.READS_EXECUTIONS

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        try:
            ranked = list(self._policy.rank(list(waiting), engine, now_s))  # a copy, because the policy may change the list
            if len(ranked) == len(waiting) and (ranked[0] is waiting[0] if len(ranked) == 1 else _are_same(ranked, waiting)):
                return ranked
            problem = f"rank gave {len(ranked)} in place of the {len(waiting)} that wait, each once"
        except (Exception, SystemExit) as error:
            problem = f"{type(error).__name__}: {error}"
        self._on_fault("dispatch_error", problem)
        return FIFO.rank(waiting, engine, now_s)

    def task_ended(self, task: TaskHistory) -> None:
        try:
            self._policy.task_ended(task)
        except (Exception, SystemExit) as error:
            self._on_fault("dispatch_error", f"{type(error).__name__}: {error}")

    def check_name(self, name: str) -> None:
        """Refuse a policy that is not the one made by this name, because no replay could make it. Raises: `UnrecordableError`."""
        if not is_policy_class(type(self._policy), name):
            problem = f"dispatch policy {type(self._policy).__name__} is not what `dispatch: {name}` makes"
            raise UnrecordableError(f"{problem}, so that no replay can make it; name it in the entry points of a package")

    def state(self) -> dict[str, Any]:
        """Return the state of the policy as plain values, which share no mutable part with it.
        Raises: `UnrecordableError` when the policy does not return its state, or returns one that is not plain."""
        name = type(self._policy).__name__
        try:
            found = dict(self._policy.state())
        except UnrecordableError:
            raise
        except (Exception, SystemExit) as error:
            problem = f"dispatch policy {name} gives no state: {type(error).__name__}: {error}"
            raise UnrecordableError(f"{problem}; extend `DispatchPolicy`, or mend its `state`") from error
        return {str(key): _plain_copy(value, f"{name}.{key}") for key, value in found.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a value of `state`. Raises: `RfmError`, also when the policy has another state after that."""
        try:
            self._policy.restore(state)
        except RfmError:
            raise
        except (Exception, SystemExit) as error:
            problem = f"dispatch policy {type(self._policy).__name__} cannot be restored: {type(error).__name__}: {error}"
            raise RfmError(problem) from error
        if not _are_alike(self.state(), dict(state)):
            raise RfmError(f"dispatch policy {type(self._policy).__name__} has another state after it was restored")


def _plain_copy(value: Any, owner: str) -> Any:
    """Return a deep copy of a plain value. Raises: `UnrecordableError` for an object of any other class."""
    kind: Any = type(value)
    if kind in ATOMS or isinstance(value, (enum.Enum, np.generic)):
        return value
    if kind in SEQUENCES:
        return kind([_plain_copy(each, owner) for each in value])
    if kind is deque:
        return deque([_plain_copy(each, owner) for each in value], value.maxlen)
    if kind in (dict, Counter, defaultdict):
        items = {_plain_copy(key, owner): _plain_copy(each, owner) for key, each in value.items()}
        return defaultdict(value.default_factory, items) if isinstance(value, defaultdict) else kind(items)
    if kind is np.ndarray:
        return value.copy()
    raise UnrecordableError(f"dispatch policy: {owner} has a {kind.__name__}, which is no plain value; see `DispatchPolicy.KEPT`")


def _are_alike(one: Any, other: Any) -> bool:
    """Return whether two plain values are deeply equal, including class and order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_are_alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(map(_are_alike, one, other))
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return bool(one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other)))


def _are_same(ranked: Sequence[WaitingRequest], waiting: Sequence[WaitingRequest]) -> bool:
    """Return whether `ranked` has each waiting request once, in any order."""
    return {*map(id, ranked)} == {*map(id, waiting)}
