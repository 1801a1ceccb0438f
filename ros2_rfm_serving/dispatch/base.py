"""Inputs and outputs of a dispatch policy, as plain data."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ros2_rfm_serving.dispatch.history import TaskHistory
from ros2_rfm_serving.dispatch.in_flight import InFlightRows
from ros2_rfm_serving.dispatch.service_times import ServiceTimes
from ros2_rfm_serving.dispatch.waiting_request import WaitingRequest
from ros2_rfm_serving.errors import UnrecordableError
from ros2_rfm_serving.types.record import record
from ros2_rfm_serving.types.state import Kept, attribute_names, has_parts, keep, kept, restore, state_of


@dataclass(slots=True)
class EngineView:
    """State of one engine that a policy decides by."""

    batch_size: int
    """Maximum number of rows in a batch."""
    times: ServiceTimes
    round_trip_s: float = 0.0
    """Network round trip to a remote engine, as far as `times` do not include it."""
    free_s: float = -math.inf
    """Expected time at which the engine can begin the next batch."""
    remote_free_s: float = -math.inf
    """Expected time at which a remote engine has run all batches on their way to it, on the local clock."""
    in_flight: InFlightRows | None = None
    """Rows in flight of an engine that advances rows step by step; None: the engine runs whole calls."""

    def latency_s(self, num_rows: int) -> float:
        """Return the time from the beginning of a batch to its replies; 0 while it is unknown."""
        return (self.in_flight or self.times).seconds(num_rows) + self.round_trip_s

    def answers_in_s(self, num_rows: int, now_s: float) -> float:
        """Return the time until the replies of a batch that is sent now, behind the batches that are on their way."""
        return self.latency_s(num_rows) + max(0.0, self.remote_free_s - now_s - self.round_trip_s / 2)

    @property
    def next_rows(self) -> int:
        """Return the number of requests that the engine can accept when it is free again."""
        return self.in_flight.leaving if self.in_flight is not None else self.batch_size

    def begins_s(self, position: int, now_s: float) -> float:
        """Return the seconds from `now_s` until the engine begins the request at a position of the queue.
        Batches are assumed to be as large as throughput improves."""
        if self.in_flight is not None and not self.in_flight.num_whole:
            return self.in_flight.begins_in_s(position)
        rows = self.times.saturation(self.batch_size)
        return max(0.0, self.free_s - now_s) + position // rows * self.latency_s(rows)


keep(EngineView, "free_s", "times", remote_free_s="remote_free_s")


@record(frozen=True, slots=True)
class DispatchDecision:
    """Requests that run now, and the time of the next poll if there are none and nothing new arrives before."""

    batch: Sequence[WaitingRequest]
    poll_at_s: float = math.inf
    whole: bool = False
    """The batch runs in one call, on an engine that could also advance rows step by step."""


NOTHING = DispatchDecision(())


class DispatchPolicy:
    """Order of the waiting requests. Batching decides how many of the first ones run together (`batching.py`)."""

    KEPT: ClassVar[Kept] = kept()
    """Name in a recording -> attribute, for all attributes of the policy (`types/state.py: kept`). Values are plain: numbers,
    texts, arrays, and tuples, lists, sets, deques and dictionaries of them. An object of a class with a table `KEPT` may be a
    value, too, and a `defaultdict` may have such a class as its factory."""
    READS_EXECUTIONS = True
    """The policy reads when robots executed and waited (`TaskHistory`: wait ratio, execution times, pace). A plan that calls a
    policy many times does not compute them if this is False."""

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        """Return the waiting requests, most urgent first."""
        raise NotImplementedError

    def task_ended(self, task: TaskHistory) -> None:
        """Learn from a finished task. The default does nothing."""

    def state(self) -> dict[str, Any]:
        """Return the values that `KEPT` names, for a recording. A policy whose values are not plain overrides `state` and
        `restore`.

        Raises: `UnrecordableError` for an attribute that `KEPT` does not name, because a restored policy would decide without it.
        """
        if unnamed := sorted(attribute_names(self) - set(self.KEPT.values())):
            problem = f"dispatch policy {type(self).__name__} has {', '.join(unnamed)}, which its KEPT does not name"
            raise UnrecordableError(f"{problem}; name them there, or give the policy `state` and `restore`")
        for attribute in self.KEPT.values():
            value = getattr(self, attribute)
            if type(value) is dict and has_parts(value):
                problem = f"dispatch policy {type(self).__name__} has objects in {attribute}"
                raise UnrecordableError(f"{problem}; a restored policy cannot make them: let it be a defaultdict of their class")
        identities = list(_mutable_identities([getattr(self, attribute) for attribute in self.KEPT.values()]))
        if len(set(identities)) < len(identities):
            problem = f"dispatch policy {type(self).__name__} has one mutable object in two places of its state"
            raise UnrecordableError(f"{problem}; a restored policy would have two objects")
        return state_of(self, self.KEPT)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a value of `state`. Raises: `RfmError` for names that are missing or unknown."""
        restore(self, self.KEPT, state)


def _mutable_identities(values: Iterable[Any]) -> Iterator[int]:
    """Return the identity of each list, set, deque and dictionary, once for each place where it occurs."""
    for value in values:
        if isinstance(value, (list, set, deque, dict)):
            yield id(value)
        if isinstance(value, dict):
            yield from _mutable_identities(value.values())
        elif isinstance(value, (list, tuple, deque)):
            yield from _mutable_identities(value)
