"""Liveness of servers with hysteresis: a silent server is lost after a while, and one that returns is trusted after a longer one.

Robots do not wait for it: they switch to their standby by themselves within a second or two (docs/safety.md). This module decides
which servers schedules use. A server that repeatedly fails and returns is excluded for twice as long each time, and forgiven
gradually (as flapping routes are: RFC 2439); but not while robots are stopped for want of one.

Time is `now_s` of one clock, and counts only up to one poll period of a running scheduler: one that was busy or stopped has
received no messages, and declares no server lost for that. When no server at all is received, the fault is on the scheduler's side.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from ros2_rfm_serving.scheduler.estimation.status_samples import ServerStatusSample
from ros2_rfm_serving.types import Placement, ServerState

LOST_AFTER_S = 3.0
"""Time without being able to serve. One late message is harmless, as a silent server may still serve for a second."""
FIRST_WORD_S = 60.0
"""Time for a process to start and be received for the first time."""
LATE_WORD_S = 10.0
"""The same in a running factory, where servers have a former scheduler or have sent replies: they are received soon."""
LOADING_S, LOADING_SHARE = 300.0, 3.0
"""Time to load a new model, as long as the server reports progress: at least the first, or the second times the catalogue's.
Weights may be on a disk or network that is ten times as slow as that of the catalogue's measurement."""
BUSY_LOADING_S = 10.0
"""Time without a message while a server loads, which leaves it little time to report."""
GETTING_THERE = (ServerState.LOADING, ServerState.DRAINING)
"""States of a server that changes its model; it first answers pending requests."""
BACK_AFTER_S, LONGEST_BACK_S = 5.0, 600.0
SHORT_BACK_S = 1.0
"""The same where robots are stopped: any living server is better than none."""
FORGIVEN_S = 300.0
"""Half-life of the penalty for a loss."""
LOOK_PERIOD_S = 0.5


@dataclass(slots=True)
class _Server:
    model: str = ""
    """Model that it is to host; empty: none."""
    setup: tuple[object, ...] = ()
    """Configuration that it is to have."""
    epoch: int = 0
    """Epoch of the schedule that first placed it."""
    patience_s: float = LOADING_S
    """Time for it to get ready."""
    unfit_s: float = 0.0
    """Time that it could not serve its model."""
    fit_s: float = 0.0
    lost: bool = False
    penalty: float = 0.0
    """Losses, weighted by age."""
    word: ServerStatusSample | None = None
    """Newest report."""
    fresh: bool = False
    """Whether it was received since the last poll."""
    quiet_s: float = 0.0

    @property
    def back_after_s(self) -> float:
        return min(BACK_AFTER_S * math.exp2(max(self.penalty - 1.0, 0.0)), LONGEST_BACK_S)

    @property
    def fits(self) -> bool:
        """Return whether it could serve its model; one without a model is fit in any state but a failure."""
        if self.word is None or self.quiet_s > 2 * LOOK_PERIOD_S:
            return False
        return self.word.state is ServerState.READY or (not self.model and self.word.state is ServerState.LOADING)

    @property
    def serves_as_placed(self) -> bool:
        """Return whether it serves its placement, by a report that is newer than the schedule."""
        word = self.word
        return (
            word is not None and word.state is ServerState.READY and (word.model, True) == (self.model, word.follows >= self.epoch)
        )


class ServerHealth:
    """Liveness of declared servers; reports of others are ignored."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._looked_s = math.nan
        self._first_word_s = FIRST_WORD_S
        self.unknown = 0
        """Reports of undeclared servers."""

    @property
    def lost(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, server in self._servers.items() if server.lost))

    @property
    def on_probation(self) -> dict[str, float]:
        """Return server that lives again -> s until it is used."""
        return {name: s.back_after_s - s.fit_s for name, s in self._servers.items() if s.lost and s.fit_s > 0.0}

    @property
    def is_deaf(self) -> bool:
        """Return whether no server at all is received."""
        return all(server.word is None or server.quiet_s >= LOST_AFTER_S / 2 for server in self._servers.values())

    def declare(self, servers: Collection[str]) -> None:
        """Set the servers of the descriptor."""
        for name in self._servers.keys() - set(servers):
            del self._servers[name]
        for name in servers:
            self._servers.setdefault(name, _Server())

    def lose(self, servers: Collection[str]) -> None:
        """Mark servers as lost, as found by another component."""
        for name in self._servers.keys() & set(servers):
            self._servers[name].lost = True

    def place(self, server: str, placement: Placement | None, load_s: float, epoch: int) -> None:
        """Set the placement of a server, None: none; another model or other batches than before take their time."""
        model, setup = (placement.model, _setup(placement)) if placement else ("", ())
        if (found := self._servers.get(server)) and (model, setup) != (found.model, found.setup):
            found.model, found.setup, found.epoch = model, setup, epoch
            found.patience_s = max(LOADING_S, LOADING_SHARE * load_s)

    def hear(self, word: ServerStatusSample) -> None:
        if found := self._servers.get(word.server):
            if word.follows_another or (found.word is None and word.replies):
                self._first_word_s = LATE_WORD_S
            found.word, found.fresh = word, True
        else:
            self.unknown += 1

    def look(self, now_s: float, *, short: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the servers lost and returned since the last poll. short: robots are stopped for want of a server."""
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
        """Return whether an unfit server is lost. One late report is not evidence yet: statuses and polls have the same period."""
        if server.word is None:
            return server.unfit_s >= self._first_word_s
        if server.word.state in GETTING_THERE:
            return server.quiet_s >= BUSY_LOADING_S or server.unfit_s >= server.patience_s
        return server.unfit_s >= LOST_AFTER_S


def _setup(placement: Placement) -> tuple[object, ...]:
    """Return the configuration of a placement; a server prepares other batches first (CUDA graphs, compiled shapes)."""
    return placement.gpu_type, placement.batching, placement.batch_size, placement.max_sessions
