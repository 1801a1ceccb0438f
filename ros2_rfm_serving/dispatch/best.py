"""Ours: urgent is, multiplied, how old a task is, how soon it should end, and how little of the engine it had.

No order of service is best at everything: what lets quick tasks go first makes the slow ones end later (docs/server.md has the
frontier). So there are three, by what they are good at.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from ros2_rfm_serving.dispatch.base import DispatchPolicy, EngineView
from ros2_rfm_serving.dispatch.history import History
from ros2_rfm_serving.dispatch.task_lengths import TaskLengths
from ros2_rfm_serving.dispatch.waiting import Waiting
from ros2_rfm_serving.types.state import Kept, kept

FIRST_S = 0.05
"""About a batch, so that a task that had nothing is not infinitely urgent."""
OLD_S = 60.0
"""Older tasks are no more urgent for it: a robot whose task never ends must not go before all others."""
PATIENCE = 300.0
"""Selections without it after which a request counts twice; quadratic, so that none is passed over for ever."""
TURNS = 16
"""Times that all who wait could have had their turn, after which one who did not comes first: an old task that asks again at
once must not keep a new one waiting."""
LAST_CHANCE = 1.2
"""How much more a request counts for which this batch is the last that keeps its SLO."""
MAX_KINDS = 256
"""Instructions are free text: only so many are remembered."""


class Weighted(DispatchPolicy):
    """Urgent is, multiplied: how old its task is; how soon it ends, by what finished tasks of the same instruction tell (Gittins'
    index: least mean latency when lengths are not known); how little of the engine it had; how often this request was passed over;
    and that its SLO can be kept now but not by the next batch. Robots whose actions last beyond the next batch come after all
    others: they lose nothing, and fill what is left of a batch.
    """

    KEPT: ClassVar[Kept] = kept(task_lengths="_lengths", all_task_lengths="_all")
    READS_EXECUTIONS = False
    AGE, HASTE, THRIFT = 1.0, 1.0, 1.0
    """Powers of a task's age, of what is left of it, and of what it had; 0: does not count."""

    def __init__(self) -> None:
        self._lengths: defaultdict[tuple[str, str], TaskLengths] = defaultdict(TaskLengths)
        self._all = TaskLengths()
        """For kinds of which none has finished yet."""

    def rank(self, waiting: Sequence[Waiting], engine: EngineView, now_s: float) -> Sequence[Waiting]:
        if len(waiting) == 1:
            return waiting
        batch_s = engine.latency_s(min(len(waiting), engine.batch_size))
        limit = TURNS * math.ceil(len(waiting) / engine.batch_size)
        this_s, next_s = now_s + batch_s, now_s + 2 * batch_s
        return sorted(waiting, key=lambda w: self._place(w, limit, now_s, this_s, next_s))

    def task_ended(self, task: History) -> None:
        self._all.learn(task.rounds)
        if task.kind not in self._lengths and len(self._lengths) >= MAX_KINDS:
            del self._lengths[next(iter(self._lengths))]
        self._lengths[task.kind].learn(task.rounds)

    def _place(self, waiting: Waiting, limit: int, now_s: float, this_s: float, next_s: float) -> tuple[bool, bool, float, float]:
        """The smaller the sooner. limit: selections without it after which a request comes first. `this_s`, `next_s`: when the
        replies of this batch and of the next one are due."""
        history, due_s, skipped = waiting.history, waiting.due_s, waiting.history.skipped
        urgency = (
            min(now_s - history.began_s, OLD_S) ** self.AGE
            * (1.0 + (skipped / PATIENCE) ** 2)
            / self._lengths.get(history.kind, self._all).rounds_left(history.rounds) ** self.HASTE
            / (FIRST_S + history.attained_s) ** self.THRIFT
        )
        starves = waiting.starves_s < next_s or due_s < next_s
        last_chance = this_s <= due_s < next_s
        return skipped < limit, not starves, -(urgency * LAST_CHANCE if last_chance else urgency), waiting.since_s


class Best(Weighted):
    """The oldest task first, and of those about as old the one that ends soonest: few tasks are under way at a time and none waits
    in all of its rounds. The slowest tasks end soonest, and quick ones wait."""

    AGE, HASTE, THRIFT = 1.0, 0.14, 0.0


class Balanced(Weighted):
    """Between the two."""

    AGE, HASTE, THRIFT = 0.5, 1.0, 0.3


class Swift(Weighted):
    """What ends soon first: quick tasks hardly wait, most tasks end sooner, and the slowest far later."""

    AGE, HASTE, THRIFT = 0.0, 0.5, 0.3
