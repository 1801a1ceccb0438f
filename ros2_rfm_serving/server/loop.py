"""Loop of the engine threads: select a batch, run it, send the replies.

An adapter in virtual time calls the parts of `step` itself: `begin`, `run`, `complete`. For an engine that advances rows one solver
step at a time (`batching: continuous`) it calls `begin` until None, `enter`, `entered`, `advancing`, `turn` and `complete`; or
`run` for a batch that runs as a whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from ros2_rfm_serving.server.deciding import Counting, Deciding
from ros2_rfm_serving.server.horizon import NO_OUTLOOK, Outlook, outlooks
from ros2_rfm_serving.server.replies import reply_kind
from ros2_rfm_serving.server.running import described
from ros2_rfm_serving.server.stepping import StepRunning
from ros2_rfm_serving.server.tiers import Lane, Work
from ros2_rfm_serving.types import EngineReply, JudgeVerdict, ModelContract, OutputKind, Reply

ACTION_CHUNK = OutputKind.ACTION_CHUNK
Ended = tuple[Work, Sequence[EngineReply | None]]
"""Work that has left the engine, and its answers."""


class EngineLoop:
    """Loop over the engines of one server. One thread per tier calls its methods, except `run`: as many threads as concurrent calls
    that its engine accepts."""

    def __init__(self, contract: ModelContract, lanes: Sequence[Lane], deciding: Deciding, counting: Counting) -> None:
        self._contract, self._lanes, self._deciding, self._counting = contract, lanes, deciding, counting
        self._turn_s = 0.0
        """Duration of the last turn; 0: no turn since it was last reported."""
        self.look_again_s = math.inf
        """Time at which `begin` of tier 0 should be called again after it returned None, even if nothing new arrives."""

    def step(self, clock: Callable[[], float]) -> list[Reply]:
        """Select a batch, run it, and return its replies; empty when nothing waits. clock: returns seconds."""
        work = self.begin(clock())
        ended: Sequence[Ended] = [(work, self.run(work))] if work and not self.steps() else []
        if self.steps():
            _, ended = self.round(work, clock)
        return self.complete_all(ended, clock()) if ended else []

    def steps(self, tier: int = 0) -> bool:
        """Return whether a tier advances rows one solver step at a time. Only `begin` changes it."""
        return self._lanes[tier].view.in_flight is not None

    def num_in_flight(self, tier: int = 0) -> int:
        """Return the rows that have begun and not ended; 0 for a tier that runs whole batches."""
        return len(self._lanes[tier].works) if self.steps(tier) else 0

    def round(self, first: Work | None, clock: Callable[[], float]) -> tuple[bool, list[Ended]]:
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
            ended += self.turn(rows)
            self._turn_s = clock() - began_s
        return bool(works or rows), ended

    def begin(self, now_s: float, tier: int = 0) -> Work | None:
        """Select what a tier runs next; None: nothing waits that it should run, or it has enough to do (see `look_again_s`)."""
        if not tier:
            self.look_again_s = math.inf
        deciding = self._deciding
        if not deciding.brain.may_begin(tier, now_s):
            return None
        with deciding.lock:
            brain = deciding.brain
            work = brain.begin(tier, now_s)
            if not tier:
                self.look_again_s = brain.look_again_s
            if brain.mishaps:
                deciding.take_mishaps()
        return work

    def run(self, work: Work) -> list[EngineReply | None]:
        """Run a batch and return one answer per request; None where the engine failed. It raises nothing."""
        running = self._lanes[work.tier].running
        answers = running.run([waiting.request for waiting in work.batch], self._deciding.brain.config.max_engine_errors)
        if self._contract.output is not ACTION_CHUNK:
            self._check_texts(work, answers)
        return answers

    def _check_texts(self, work: Work, answers: Sequence[EngineReply | None]) -> None:
        """Count answers. A judge's text that is none of the declared words goes on as an empty verdict."""
        for i, answer in enumerate(answers):
            if answer is None:
                continue
            judges = reply_kind(self._contract, work.batch[i].request.id.component) is JudgeVerdict
            self._counting.answered("verdict" if judges else "plan")
            if judges and not answer.verdict:
                problem = answer.violation or "it is none of the declared words"
                self._counting.mishap("verdict_violation", described(answer.text, problem))

    # --- one solver step at a time ---

    def enter(self, works: Sequence[Work]) -> list[tuple[int, int]]:
        """Perceive the works that have begun, together, and return (number, turns that it will take) of those that entered."""
        requests = {work.number: work.batch[0].request for work in works}
        return list(self._stepping.enter(requests, self._deciding.brain.config.max_engine_errors).items())

    def entered(self, turns: Sequence[tuple[int, int]], now_s: float) -> list[Work]:
        """Return the works that began and did not enter, to be completed without an answer."""
        with self._deciding as brain:
            works = {work.number: work for work in self._lanes[0].works}
            return [works[number] for number in brain.entered(tuple(turns), now_s)]

    def advancing(self, now_s: float, took_s: float | None = None) -> list[Work]:
        """Return the rows in flight that advance now, after removing those whose answers are not needed any more.
        took_s: duration of the previous turn, where `round` has not measured it."""
        lane = self._lanes[0]
        if lane.is_idle:
            return []
        ready = self._stepping.ready()
        took_s, self._turn_s = self._turn_s if took_s is None else took_s, 0.0
        with self._deciding as brain:
            works, num_moving = {work.number: work for work in lane.works}, lane.num_moving
            advance, leave = brain.turn(tuple(ready), took_s, now_s)
        if leave:
            self._stepping.leave(leave)
        if not advance and lane.num_moving < num_moving:
            self.look_again_s = now_s  # `begin` counted on rows that do not advance
        return [works[number] for number in advance]

    def turn(self, rows: Sequence[Work]) -> list[Ended]:
        """Advance rows by one solver step and return those that are done."""
        works = {work.number: work for work in rows}
        answers = self._stepping.turn(list(works), self._deciding.brain.config.max_engine_errors)
        return [(works[number], [answer]) for number, answer in answers.items()]

    @property
    def _stepping(self) -> StepRunning:
        running = self._lanes[0].running
        assert isinstance(running, StepRunning)
        return running

    # --- replies ---

    def complete(self, work: Work, answers: Sequence[EngineReply | None], now_s: float) -> list[Reply]:
        """Return the replies to the requests of a work whose sessions are still open."""
        return self.complete_all([(work, answers)], now_s)

    def complete_all(self, ended: Sequence[Ended], now_s: float) -> list[Reply]:
        """Return the replies to works that ended together. For the rows of one turn this hardly takes longer than for one of
        them."""
        deciding = self._deciding
        with deciding.lock:  # this comes first, so that faulty answers cannot keep the engine busy
            brain = deciding.brain
            for work, answers in ended:
                answered = [answer is not None for answer in answers]
                brain.ended(work, answered, self._lanes[work.tier].running.num_failed, now_s)
        seen = iter(self._outlooks(ended))
        replies = []
        with deciding.lock:
            brain = deciding.brain
            for work, answers in ended:
                for row, answer in enumerate(answers):
                    if reply := brain.reply(work, row, answer, next(seen)):
                        replies.append(reply)
            if brain.mishaps:
                deciding.take_mishaps()
        return replies

    def _outlooks(self, ended: Sequence[Ended]) -> Iterable[Outlook]:
        """Return the outlooks row by row. Texts have none."""
        if self._contract.output is not ACTION_CHUNK:
            return itertools.repeat(NO_OUTLOOK)
        horizons = [waiting.request.horizon for work, _ in ended for waiting in work.batch]
        return outlooks(horizons, [answer for _, answers in ended for answer in answers], self._counting.mishap)
