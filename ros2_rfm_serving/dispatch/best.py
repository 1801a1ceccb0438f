"""Policies of this project whose urgency is a product: age of the task, nearness of its end, little attained service.

No service order is best for every aim: an order that lets quick tasks go first makes the slow ones end later
(docs/measurements/server.md shows the frontier). Therefore there are three policies for different aims.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from ros2_rfm_serving.dispatch.base import DispatchPolicy, EngineView
from ros2_rfm_serving.dispatch.history import TaskHistory
from ros2_rfm_serving.dispatch.task_lengths import TaskLengths
from ros2_rfm_serving.dispatch.waiting_request import WaitingRequest
from ros2_rfm_serving.types.state import Kept, kept

ATTAINED_FLOOR_S = 0.05
"""Duration of about one batch. It keeps a task without any service from being infinitely urgent."""
MAX_AGE_S = 60.0
"""Age from which urgency no longer grows: a robot whose task never ends must not go before all others."""
SKIP_SCALE = 300.0
"""Number of selections without a request after which the request counts twice. The growth is quadratic, so that no request is
passed over for ever."""
MAX_MISSED_ROUNDS = 16
"""Number of full turns of all waiting requests after which a request that was left out comes first. An old task that sends its next
request at once must not keep a new one waiting."""
LAST_CHANCE = 1.2
"""Factor on the urgency of a request whose SLO only this batch can keep."""
MAX_KINDS = 256
"""Maximum number of remembered instructions, which are free text."""


class WeightedPolicy(DispatchPolicy):
    """Product of weights: the age of the task; how soon it ends, estimated from finished tasks of the same instruction (Gittins'
    index, which minimises mean latency for unknown lengths); how little engine time it had; how often this request was passed over;
    and whether only this batch can keep its SLO. Robots whose actions last beyond the next batch come after all others: they lose
    nothing, and fill the rest of a batch."""

    KEPT: ClassVar[Kept] = kept(task_lengths="_lengths", all_task_lengths="_all")
    READS_EXECUTIONS = False
    AGE, HASTE, THRIFT = 1.0, 1.0, 1.0
    """Exponents of the task's age, of its remaining rounds and of its attained service; 0: the factor does not count."""

    def __init__(self) -> None:
        self._lengths: defaultdict[tuple[str, str], TaskLengths] = defaultdict(TaskLengths)
        self._all = TaskLengths()
        """Lengths of all tasks, for kinds without a finished task."""

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        if len(waiting) == 1:
            return waiting
        batch_s = engine.latency_s(min(len(waiting), engine.batch_size))
        limit = MAX_MISSED_ROUNDS * math.ceil(len(waiting) / engine.batch_size)
        this_s, next_s = now_s + batch_s, now_s + 2 * batch_s
        return sorted(waiting, key=lambda w: self._place(w, limit, now_s, this_s, next_s))

    def task_ended(self, task: TaskHistory) -> None:
        self._all.learn(task.rounds)
        if task.kind not in self._lengths and len(self._lengths) >= MAX_KINDS:
            del self._lengths[next(iter(self._lengths))]
        self._lengths[task.kind].learn(task.rounds)

    def _place(
        self, waiting: WaitingRequest, limit: int, now_s: float, this_s: float, next_s: float
    ) -> tuple[bool, bool, float, float]:
        """Return the sort key of a request; the smallest is served first. limit: selections without the request after which it
        comes first. this_s, next_s: when the replies of this batch and of the next one are due."""
        history, due_s, skipped = waiting.history, waiting.due_s, waiting.history.skipped
        urgency = (
            min(now_s - history.began_s, MAX_AGE_S) ** self.AGE
            * (1.0 + (skipped / SKIP_SCALE) ** 2)
            / self._lengths.get(history.kind, self._all).rounds_left(history.rounds) ** self.HASTE
            / (ATTAINED_FLOOR_S + history.attained_s) ** self.THRIFT
        )
        starves = waiting.starves_s < next_s or due_s < next_s
        last_chance = this_s <= due_s < next_s
        return skipped < limit, not starves, -(urgency * LAST_CHANCE if last_chance else urgency), waiting.since_s


class BestPolicy(WeightedPolicy):
    """Mostly the oldest task first; among tasks of similar age, the one that ends soonest. Few tasks are under way at a time, and
    no task waits in all of its rounds. The slowest tasks end soonest, and quick ones wait."""

    AGE, HASTE, THRIFT = 1.0, 0.14, 0.0


class BalancedPolicy(WeightedPolicy):
    """Compromise between `BestPolicy` and `SwiftPolicy`."""

    AGE, HASTE, THRIFT = 0.5, 1.0, 0.3


class SwiftPolicy(WeightedPolicy):
    """Mostly the task that ends soonest first: quick tasks hardly wait, most tasks end sooner, and the slowest far later."""

    AGE, HASTE, THRIFT = 0.0, 0.5, 0.3
