"""What a dispatch policy sees and says: plain data."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ros2_rfm_serving.dispatch.flight import Flight
from ros2_rfm_serving.dispatch.history import History
from ros2_rfm_serving.dispatch.service_times import ServiceTimes
from ros2_rfm_serving.dispatch.waiting import Waiting
from ros2_rfm_serving.errors import UnrecordableError
from ros2_rfm_serving.types.record import record
from ros2_rfm_serving.types.state import Kept, attribute_names, has_parts, keep, kept, restore, state_of


@dataclass(slots=True)
class EngineView:
    """One engine, as a policy sees it."""

    batch_size: int
    """Rows that fit into a batch."""
    times: ServiceTimes
    round_trip_s: float = 0.0
    """To an engine that is elsewhere, beyond what `times` say."""
    free_s: float = -math.inf
    """When it is expected to be able to begin the next batch."""
    free_there_s: float = -math.inf
    """When an engine that is elsewhere is expected to have run what is on its way to it, on the clock of here."""
    flight: Flight | None = None
    """Of an engine whose rows go on step by step; None: it goes by whole calls."""

    def latency_s(self, num_rows: int) -> float:
        """From the beginning of a batch to its replies; 0: not known yet."""
        return (self.flight or self.times).seconds(num_rows) + self.round_trip_s

    def answers_in_s(self, num_rows: int, now_s: float) -> float:
        """A batch that is sent now, behind those that are on their way."""
        return self.latency_s(num_rows) + max(0.0, self.free_there_s - now_s - self.round_trip_s / 2)

    @property
    def next_rows(self) -> int:
        """Requests that it can take when it is free again."""
        return self.flight.leaving if self.flight is not None else self.batch_size

    def begins_s(self, position: int, now_s: float) -> float:
        """When it gets to the request at this place of the queue, from `now_s` on; batches are as large as pays."""
        if self.flight is not None and not self.flight.num_whole:
            return self.flight.begins_in_s(position)
        rows = self.times.saturation(self.batch_size)
        return max(0.0, self.free_s - now_s) + position // rows * self.latency_s(rows)


keep(EngineView, "free_s", "times", remote_free_s="free_there_s")


@record(frozen=True, slots=True)
class Selection:
    """What runs now, and if nothing does, when to look again should nothing new arrive before."""

    batch: Sequence[Waiting]
    look_again_s: float = math.inf
    whole: bool = False
    """In one call, on an engine whose rows could go on step by step."""


NOTHING = Selection(())


class DispatchPolicy:
    """Ranks; how many of the first run together is batching's part (`batching.py`)."""

    KEPT: ClassVar[Kept] = kept()
    """Name in a recording -> attribute, of all attributes that the policy has (`types/state.py: kept`); their values are plain:
    numbers, texts, arrays, and tuples, lists, sets, deques and dictionaries of them. An object of a class with a table `KEPT` may
    be a value, too, and a `defaultdict` may have such a class as its factory."""
    READS_EXECUTIONS = True
    """Whether it looks at when robots executed and waited (`History`: wait ratio, execution times, pace): a plan that asks it many
    times keeps no account of them for one that does not."""

    def rank(self, waiting: Sequence[Waiting], engine: EngineView, now_s: float) -> Sequence[Waiting]:
        """Most urgent first."""
        raise NotImplementedError

    def task_ended(self, task: History) -> None:
        """For policies that learn."""

    def state(self) -> dict[str, Any]:
        """Return what `KEPT` names, for a recording. A policy whose values are not plain has its own `state` and `restore`.

        Raises: `UnrecordableError` for an attribute that `KEPT` does not name: a restored policy would decide without it.
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
        """Continue from what `state` returned. Raises: `RfmError` for names that are missing or unknown."""
        restore(self, self.KEPT, state)


def _mutable_identities(values: Iterable[Any]) -> Iterator[int]:
    """Return the identity of each list, set, deque and dictionary, one for each place in which it stands."""
    for value in values:
        if isinstance(value, (list, set, deque, dict)):
            yield id(value)
        if isinstance(value, dict):
            yield from _mutable_identities(value.values())
        elif isinstance(value, (list, tuple, deque)):
            yield from _mutable_identities(value)
