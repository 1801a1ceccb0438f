"""Which servers live, with hysteresis: one that falls silent is lost after a while, one that comes back is trusted after a longer
one.

Robots do not wait for it: they turn to their standby by themselves within a second or two (docs/safety.md). What is decided here
is whom schedules are made with. A server that comes and goes is kept out for twice as long each time, and forgiven by and by (as
routes are that flap: RFC 2439); but not while robots stand for want of one.

Time comes as `now_s` of one clock, and counts only as far as between two looks of a scheduler that runs: one that was busy or
stopped has heard nobody, and calls nobody lost for it. When nobody at all is heard, it is the scheduler that is deaf.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from ros2_rfm_serving.scheduler.watch.words import ServerWord
from ros2_rfm_serving.types import Placement, ServerState

LOST_AFTER_S = 3.0
"""Without being able to serve. A late word is nothing: one that falls silent may still serve for another second or so."""
FIRST_WORD_S = 60.0
"""For a process to start, and be heard for the first time."""
LATE_WORD_S = 10.0
"""The same, where the factory runs already, as others say that have a former scheduler or have answered: whoever lives is heard
soon."""
LOADING_S, LOADING_SHARE = 300.0, 3.0
"""For what was placed anew, as long as the server says that it gets there: at least so long, or this many times what the catalogue
says. Weights may come from a disk or a network that is ten times as slow as the one the catalogue was measured with."""
BUSY_LOADING_S = 10.0
"""Without a word: whoever loads has little time left to speak."""
GETTING_THERE = (ServerState.LOADING, ServerState.DRAINING)
"""A server that turns to another model answers first what it has."""
BACK_AFTER_S, LONGEST_BACK_S = 5.0, 600.0
SHORT_BACK_S = 1.0
"""Where robots stand, any server that lives is better than none."""
FORGIVEN_S = 300.0
"""A loss weighs half as much after so long."""
LOOK_PERIOD_S = 0.5


@dataclass(slots=True)
class _Server:
    model: str = ""
    """That it is to host; empty: none."""
    setup: tuple[object, ...] = ()
    """How."""
    epoch: int = 0
    """Of the schedule that said so first."""
    patience_s: float = LOADING_S
    """For it to get ready."""
    unfit_s: float = 0.0
    """For how long it could not serve what it should."""
    fit_s: float = 0.0
    lost: bool = False
    penalty: float = 0.0
    """Losses, the older the less."""
    word: ServerWord | None = None
    """The newest."""
    fresh: bool = False
    """Heard since the last look."""
    quiet_s: float = 0.0

    @property
    def back_after_s(self) -> float:
        return min(BACK_AFTER_S * math.exp2(max(self.penalty - 1.0, 0.0)), LONGEST_BACK_S)

    @property
    def fits(self) -> bool:
        """It could serve what is asked of it; one that hosts nothing is fit when it says anything but that it is broken."""
        if self.word is None or self.quiet_s > 2 * LOOK_PERIOD_S:
            return False
        return self.word.state is ServerState.READY or (not self.model and self.word.state is ServerState.LOADING)

    @property
    def serves_as_placed(self) -> bool:
        """By a word that is newer than the schedule that placed it."""
        word = self.word
        return (
            word is not None and word.state is ServerState.READY and (word.model, True) == (self.model, word.follows >= self.epoch)
        )


class Health:
    """Of declared servers; a word of any other one says nothing."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._looked_s = math.nan
        self._first_word_s = FIRST_WORD_S
        self.unknown = 0
        """Words of servers that nobody declared."""

    @property
    def lost(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, server in self._servers.items() if server.lost))

    @property
    def on_probation(self) -> dict[str, float]:
        """Server that lives again -> s until it is used."""
        return {name: s.back_after_s - s.fit_s for name, s in self._servers.items() if s.lost and s.fit_s > 0.0}

    @property
    def is_deaf(self) -> bool:
        """Nobody at all is heard."""
        return all(server.word is None or server.quiet_s >= LOST_AFTER_S / 2 for server in self._servers.values())

    def declare(self, servers: Collection[str]) -> None:
        """Those of the descriptor."""
        for name in self._servers.keys() - set(servers):
            del self._servers[name]
        for name in servers:
            self._servers.setdefault(name, _Server())

    def lose(self, servers: Collection[str]) -> None:
        """Somebody else has found so."""
        for name in self._servers.keys() & set(servers):
            self._servers[name].lost = True

    def place(self, server: str, placement: Placement | None, load_s: float, epoch: int) -> None:
        """A schedule says what it hosts, None: nothing; another model or other batches than before take their time."""
        model, setup = (placement.model, _setup(placement)) if placement else ("", ())
        if (found := self._servers.get(server)) and (model, setup) != (found.model, found.setup):
            found.model, found.setup, found.epoch = model, setup, epoch
            found.patience_s = max(LOADING_S, LOADING_SHARE * load_s)

    def hear(self, word: ServerWord) -> None:
        if found := self._servers.get(word.server):
            if word.follows_another or (found.word is None and word.replies):
                self._first_word_s = LATE_WORD_S
            found.word, found.fresh = word, True
        else:
            self.unknown += 1

    def look(self, now_s: float, *, short: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Who is lost since the last look, and who is back. short: robots stand for want of a server."""
        passed_s = min(max(now_s - self._looked_s, 0.0), LOOK_PERIOD_S) if not math.isnan(self._looked_s) else 0.0
        self._looked_s = now_s
        for server in self._servers.values():
            server.quiet_s = 0.0 if server.fresh else server.quiet_s + passed_s
            server.fresh = False
        if self.is_deaf:
            return (), ()
        before = self.lost
        for server in self._servers.values():
            self._judge(server, passed_s, short)
        now = self.lost
        return tuple(name for name in now if name not in before), tuple(name for name in before if name not in now)

    def _judge(self, server: _Server, passed_s: float, short: bool) -> None:
        server.penalty *= 0.5 ** (passed_s / FORGIVEN_S)
        if server.fits:
            server.fit_s, server.unfit_s = server.fit_s + passed_s, 0.0
            if server.serves_as_placed:
                server.patience_s = LOST_AFTER_S
            server.lost &= server.fit_s < (min(server.back_after_s, SHORT_BACK_S) if short else server.back_after_s)
            return
        server.fit_s, server.unfit_s = 0.0, server.unfit_s + passed_s
        if not server.lost and self._is_over(server):
            server.lost, server.penalty = True, server.penalty + 1.0

    def _is_over(self, server: _Server) -> bool:
        """A word that is late says nothing yet: statuses and looks are as often as each other."""
        if server.word is None:
            return server.unfit_s >= self._first_word_s
        if server.word.state in GETTING_THERE:
            return server.quiet_s >= BUSY_LOADING_S or server.unfit_s >= server.patience_s
        return server.unfit_s >= LOST_AFTER_S


def _setup(placement: Placement) -> tuple[object, ...]:
    """A server that is to run other batches prepares them first (CUDA graphs, compiled shapes)."""
    return placement.gpu_type, placement.batching, placement.batch_size, placement.max_sessions
