"""What the threads of engines call: select, run, reply.

A body that does not spend time but computes it calls the parts of `step` itself: `begin`, `run`, `complete`; of an engine whose
rows go on one solver step at a time (`batching: continuous`): `begin` until None, `enter`, `entered`, `advancing`, `turn` and
`complete`; or `run` what is to run as a whole.
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
from ros2_rfm_serving.types import EngineReply, ModelContract, OutputKind, Reply, Verdict

ACTION_CHUNK = OutputKind.ACTION_CHUNK
Ended = tuple[Work, Sequence[EngineReply | None]]
"""What an engine is done with, and its answers"""


class EngineLoop:
    """Of one server. Everything from one thread per tier, but `run` from as many as its engine takes calls at once."""

    def __init__(self, contract: ModelContract, lanes: Sequence[Lane], deciding: Deciding, counting: Counting) -> None:
        self._contract, self._lanes, self._deciding, self._counting = contract, lanes, deciding, counting
        self._turn_s = 0.0
        """That the last turn took; 0: rows went on in none since it was told."""
        self.look_again_s = math.inf
        """When the last `begin` of tier 0 that gave None wants to be called again, even if nothing new arrives."""

    def step(self, clock: Callable[[], float]) -> list[Reply]:
        """Selects a batch, runs it, and returns its replies; empty when nothing waits. `clock` reads seconds."""
        work = self.begin(clock())
        ended: Sequence[Ended] = [(work, self.run(work))] if work and not self.steps() else []
        if self.steps():
            _, ended = self.round(work, clock)
        return self.complete_all(ended, clock()) if ended else []

    def steps(self, tier: int = 0) -> bool:
        """Whether its rows go on one solver step at a time. Changes in `begin` alone."""
        return self._lanes[tier].view.flight is not None

    def num_in_flight(self, tier: int = 0) -> int:
        """Rows that have begun and not ended, where they go on one solver step at a time."""
        return len(self._lanes[tier].works) if self.steps(tier) else 0

    def round(self, first: Work | None, clock: Callable[[], float]) -> tuple[bool, list[Ended]]:
        """What begins enters, and rows in flight go on by one step; or a whole batch runs. Whether anything moved, and works that
        ended, for `complete`.

        first: what `begin` gave; more may follow, but after a whole batch.
        """
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
        """Selects what a tier runs next; None: nothing waits that it should run, or it has enough to do (see `look_again_s`)."""
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
        """One answer per request; None where the engine failed. Raises nothing."""
        running = self._lanes[work.tier].running
        answers = running.run([waiting.request for waiting in work.batch], self._deciding.brain.config.max_engine_errors)
        if self._contract.output is not ACTION_CHUNK:
            self._check_texts(work, answers)
        return answers

    def _check_texts(self, work: Work, answers: Sequence[EngineReply | None]) -> None:
        """Counts answers. Text that is none of a judge's words goes on as an empty verdict."""
        for i, answer in enumerate(answers):
            if answer is None:
                continue
            judges = reply_kind(self._contract, work.batch[i].request.id.component) is Verdict
            self._counting.answered("verdict" if judges else "plan")
            if judges and not answer.verdict:
                problem = answer.violation or "it is none of the declared words"
                self._counting.mishap("verdict_violation", described(answer.text, problem))

    # --- one solver step at a time ---

    def enter(self, works: Sequence[Work]) -> list[tuple[int, int]]:
        """Perceives what has begun, together: (number, turns that it will take) of what entered."""
        requests = {work.number: work.batch[0].request for work in works}
        return list(self._stepping.enter(requests, self._deciding.brain.config.max_engine_errors).items())

    def entered(self, turns: Sequence[tuple[int, int]], now_s: float) -> list[Work]:
        """What began and did not enter: to be completed without an answer."""
        with self._deciding as brain:
            works = {work.number: work for work in self._lanes[0].works}
            return [works[number] for number in brain.entered(tuple(turns), now_s)]

    def advancing(self, now_s: float, took_s: float | None = None) -> list[Work]:
        """Rows in flight that go on now; those that nobody waits for have left. took_s: of the turn before, where it is not `round`
        that measured it."""
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
            self.look_again_s = now_s  # `begin` took into account rows that do not go on
        return [works[number] for number in advance]

    def turn(self, rows: Sequence[Work]) -> list[Ended]:
        """Advances them by one solver step. Those that are done."""
        works = {work.number: work for work in rows}
        answers = self._stepping.turn(list(works), self._deciding.brain.config.max_engine_errors)
        return [(works[number], [answer]) for number, answer in answers.items()]

    @property
    def _stepping(self) -> StepRunning:
        running = self._lanes[0].running
        assert isinstance(running, StepRunning)
        return running

    # --- what becomes of it ---

    def complete(self, work: Work, answers: Sequence[EngineReply | None], now_s: float) -> list[Reply]:
        """Replies to those whose session is still open."""
        return self.complete_all([(work, answers)], now_s)

    def complete_all(self, ended: Sequence[Ended], now_s: float) -> list[Reply]:
        """Of what ended together: rows of one turn take hardly longer than one of them."""
        deciding = self._deciding
        with deciding.lock:  # first of all: whatever is wrong with the answers, the engine is free again
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
        """Row by row. There is none on a text."""
        if self._contract.output is not ACTION_CHUNK:
            return itertools.repeat(NO_OUTLOOK)
        horizons = [waiting.request.horizon for work, _ in ended for waiting in work.batch]
        return outlooks(horizons, [answer for _, answers in ended for answer in answers], self._counting.mishap)
