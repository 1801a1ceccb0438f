"""Loop of the engine threads: select a batch, run it, send the replies.

An adapter in virtual time calls the parts of `step` itself: `begin`, `run`, `complete`. For an engine that advances rows one solver
step at a time (`batching: continuous`) it calls `begin` until None, `enter`, `entered`, `advancing`, `iterate` and `complete`; or
`run` for a batch that runs as a whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from ros2_rfm_serving.server.core_access import LockedCore, RefusalCounters
from ros2_rfm_serving.server.engine_queues import EngineQueue, RunningBatch
from ros2_rfm_serving.server.engine_runner import described
from ros2_rfm_serving.server.horizon import NO_HORIZON_DECISION, HorizonDecision, horizon_decisions
from ros2_rfm_serving.server.replies import reply_kind
from ros2_rfm_serving.server.step_engine_runner import StepEngineRunner
from ros2_rfm_serving.types import EngineReply, JudgeVerdict, ModelContract, OutputKind, Reply

ACTION_CHUNK = OutputKind.ACTION_CHUNK
Ended = tuple[RunningBatch, Sequence[EngineReply | None]]
"""Work that has left the engine, and its answers."""


class EngineLoop:
    """Loop over the engines of one server. One thread per tier calls its methods, except `run`: as many threads as concurrent calls
    that its engine accepts."""

    def __init__(self, contract: ModelContract, queues: Sequence[EngineQueue], core: LockedCore, counters: RefusalCounters) -> None:
        self._contract, self._queues, self._core, self._counters = contract, queues, core, counters
        self._iteration_s = 0.0
        """Duration of the last turn; 0: no turn since it was last reported."""
        self.poll_at_s = math.inf
        """Time at which `begin` of tier 0 should be called again after it returned None, even if nothing new arrives."""

    def step(self, clock: Callable[[], float]) -> list[Reply]:
        """Select a batch, run it, and return its replies; empty when nothing waits. clock: returns seconds."""
        work = self.begin(clock())
        ended: Sequence[Ended] = [(work, self.run(work))] if work and not self.is_iteration_level() else []
        if self.is_iteration_level():
            _, ended = self.round(work, clock)
        return self.complete_all(ended, clock()) if ended else []

    def is_iteration_level(self, queue_index: int = 0) -> bool:
        """Return whether a tier advances rows one solver step at a time. Only `begin` changes it."""
        return self._queues[queue_index].view.in_flight is not None

    def num_in_flight(self, queue_index: int = 0) -> int:
        """Return the rows that have begun and not ended; 0 for a tier that runs whole batches."""
        return len(self._queues[queue_index].works) if self.is_iteration_level(queue_index) else 0

    def round(self, first: RunningBatch | None, clock: Callable[[], float]) -> tuple[bool, list[Ended]]:
        """Let new rows enter and advance rows in flight by one step, or run a whole batch. Return whether anything moved, and the
        works that ended, for `complete`. first: result of `begin`. More works may follow it, except after a whole batch."""
        if first and first.whole:
            return True, [(first, self.run(first))]
        ended: list[Ended] = []
        if works := [first, *iter(lambda: self.begin(clock()), None)] if first else []:
            turns = self.enter(works)
            ended = [(work, [None]) for work in self.entered(turns, clock())]
        rows = self.advancing(clock())
        if rows:
            began_s = clock()
            ended += self.iterate(rows)
            self._iteration_s = clock() - began_s
        return bool(works or rows), ended

    def begin(self, now_s: float, queue_index: int = 0) -> RunningBatch | None:
        """Select what a tier runs next; None: nothing waits that it should run, or it has enough to do (see `poll_at_s`)."""
        if not queue_index:
            self.poll_at_s = math.inf
        deciding = self._core
        if not deciding.core.may_begin(queue_index, now_s):
            return None
        with deciding.lock:
            brain = deciding.core
            work = brain.begin(queue_index, now_s)
            if not queue_index:
                self.poll_at_s = brain.poll_at_s
            if brain.faults:
                deciding.count_faults()
        return work

    def run(self, work: RunningBatch) -> list[EngineReply | None]:
        """Run a batch and return one answer per request; None where the engine failed. It raises nothing."""
        running = self._queues[work.queue_index].running
        answers = running.run([waiting.request for waiting in work.batch], self._core.core.config.max_engine_errors)
        if self._contract.output is not ACTION_CHUNK:
            self._check_texts(work, answers)
        return answers

    def _check_texts(self, work: RunningBatch, answers: Sequence[EngineReply | None]) -> None:
        """Count answers. A judge's text that is none of the declared words goes on as an empty verdict."""
        for i, answer in enumerate(answers):
            if answer is None:
                continue
            judges = reply_kind(self._contract, work.batch[i].request.id.component) is JudgeVerdict
            self._counters.answered("verdict" if judges else "plan")
            if judges and not answer.verdict:
                problem = answer.violation or "it is none of the declared words"
                self._counters.count_fault("verdict_violation", described(answer.text, problem))

    # --- one solver step at a time ---

    def enter(self, works: Sequence[RunningBatch]) -> list[tuple[int, int]]:
        """Perceive the works that have begun, together, and return (number, turns that it will take) of those that entered."""
        requests = {work.number: work.batch[0].request for work in works}
        return list(self._stepping.enter(requests, self._core.core.config.max_engine_errors).items())

    def entered(self, iterations: Sequence[tuple[int, int]], now_s: float) -> list[RunningBatch]:
        """Return the works that began and did not enter, to be completed without an answer."""
        with self._core as brain:
            works = {work.number: work for work in self._queues[0].works}
            return [works[number] for number in brain.entered(tuple(iterations), now_s)]

    def advancing(self, now_s: float, duration_s: float | None = None) -> list[RunningBatch]:
        """Return the rows in flight that advance now, after removing those whose answers are not needed any more.
        took_s: duration of the previous turn, where `round` has not measured it."""
        lane = self._queues[0]
        if lane.is_idle:
            return []
        ready = self._stepping.ready()
        duration_s, self._iteration_s = self._iteration_s if duration_s is None else duration_s, 0.0
        with self._core as brain:
            works, num_moving = {work.number: work for work in lane.works}, lane.num_moving
            advance, leave = brain.iterate(tuple(ready), duration_s, now_s)
        if leave:
            self._stepping.leave(leave)
        if not advance and lane.num_moving < num_moving:
            self.poll_at_s = now_s  # `begin` counted on rows that do not advance
        return [works[number] for number in advance]

    def iterate(self, rows: Sequence[RunningBatch]) -> list[Ended]:
        """Advance rows by one solver step and return those that are done."""
        works = {work.number: work for work in rows}
        answers = self._stepping.iterate(list(works), self._core.core.config.max_engine_errors)
        return [(works[number], [answer]) for number, answer in answers.items()]

    @property
    def _stepping(self) -> StepEngineRunner:
        running = self._queues[0].running
        assert isinstance(running, StepEngineRunner)
        return running

    # --- replies ---

    def complete(self, work: RunningBatch, answers: Sequence[EngineReply | None], now_s: float) -> list[Reply]:
        """Return the replies to the requests of a work whose sessions are still open."""
        return self.complete_all([(work, answers)], now_s)

    def complete_all(self, ended: Sequence[Ended], now_s: float) -> list[Reply]:
        """Return the replies to works that ended together. For the rows of one turn this hardly takes longer than for one of
        them."""
        deciding = self._core
        with deciding.lock:  # this comes first, so that faulty answers cannot keep the engine busy
            brain = deciding.core
            for work, answers in ended:
                answered = [answer is not None for answer in answers]
                brain.ended(work, answered, self._queues[work.queue_index].running.num_failed, now_s)
        seen = iter(self._outlooks(ended))
        replies = []
        with deciding.lock:
            brain = deciding.core
            for work, answers in ended:
                for row, answer in enumerate(answers):
                    if reply := brain.reply(work, row, answer, next(seen)):
                        replies.append(reply)
            if brain.faults:
                deciding.count_faults()
        return replies

    def _outlooks(self, ended: Sequence[Ended]) -> Iterable[HorizonDecision]:
        """Return the outlooks row by row. Texts have none."""
        if self._contract.output is not ACTION_CHUNK:
            return itertools.repeat(NO_HORIZON_DECISION)
        horizons = [waiting.request.horizon for work, _ in ended for waiting in work.batch]
        return horizon_decisions(horizons, [answer for _, answers in ended for answer in answers], self._counters.count_fault)
