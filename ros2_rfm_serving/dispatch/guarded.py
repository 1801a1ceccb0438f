"""A policy that may be foreign code: where it raises or loses somebody, the batch is cut as they came."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ros2_rfm_serving.dispatch.base import DispatchPolicy, EngineView
from ros2_rfm_serving.dispatch.fifo import Fifo
from ros2_rfm_serving.dispatch.history import History
from ros2_rfm_serving.dispatch.waiting import Waiting

FIFO = Fifo()


class Guarded(DispatchPolicy):
    """`mishap` is told (counter, what happened)."""

    def __init__(self, policy: DispatchPolicy, mishap: Callable[[str, str], None]) -> None:
        self._policy, self._mishap = policy, mishap

    @property
    def READS_EXECUTIONS(self) -> bool:  # type: ignore[override]
        """Return what its policy says: no state of its own, which recordings of before would lack."""
        return self._policy.READS_EXECUTIONS

    def rank(self, waiting: Sequence[Waiting], engine: EngineView, now_s: float) -> Sequence[Waiting]:
        try:
            ranked = list(self._policy.rank(list(waiting), engine, now_s))  # its own: it may take apart what it is given
            if len(ranked) == len(waiting) and (ranked[0] is waiting[0] if len(ranked) == 1 else _are_same(ranked, waiting)):
                return ranked
            problem = f"rank gave {len(ranked)} in place of the {len(waiting)} who wait, each once"
        except (Exception, SystemExit) as error:
            problem = f"{type(error).__name__}: {error}"
        self._mishap("dispatch_error", problem)
        return FIFO.rank(waiting, engine, now_s)

    def task_ended(self, task: History) -> None:
        try:
            self._policy.task_ended(task)
        except (Exception, SystemExit) as error:
            self._mishap("dispatch_error", f"{type(error).__name__}: {error}")


def _are_same(ranked: Sequence[Waiting], waiting: Sequence[Waiting]) -> bool:
    """Each once, in whatever order."""
    return {*map(id, ranked)} == {*map(id, waiting)}
