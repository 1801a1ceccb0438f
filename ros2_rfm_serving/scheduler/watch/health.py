"""Which servers live, with hysteresis: one that falls silent is lost after a while, one that comes back is trusted after a longer
one.

Robots do not wait for it: they turn to their standby by themselves within a second or two (docs/safety.md). What is decided here
is whom schedules are made with. A server that comes and goes is kept out for twice as long each time, and forgiven by and by (as
routes are that flap: RFC 2439).

Time comes as `now_s` of one clock, and counts only as far as between two looks of a scheduler that runs: one that was busy or
stopped has heard nobody, and calls nobody lost for it. When nobody at all is heard, it is the scheduler that is deaf.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from ros2_rfm_serving.scheduler.watch.words import ServerWord
from ros2_rfm_serving.types import ServerState

LOST_AFTER_S = 3.0
"""Without being able to serve: six status messages."""
FIRST_WORD_S = 60.0
"""For a process to start, and be heard for the first time."""
LOADING_S, LOADING_SHARE = 60.0, 2.0
"""For a model that was placed anew: at least so long, or this many times what the catalogue says."""
BACK_AFTER_S, LONGEST_BACK_S = 5.0, 600.0
FORGIVEN_S = 300.0
"""A loss weighs half as much after so long."""
LOOK_PERIOD_S = 0.5


@dataclass(slots=True)
class _Server:
    patience_s: float = FIRST_WORD_S
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


class Health:
    """Of declared servers; a word of any other one says nothing."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._models: dict[str, str] = {}
        self._looked_s = math.nan
        self.unknown = 0
        """Words of servers that nobody declared."""

    @property
    def lost(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, server in self._servers.items() if server.lost))

    @property
    def on_probation(self) -> dict[str, float]:
        """Server that lives again -> s until it is used."""
        return {name: s.back_after_s - s.fit_s for name, s in self._servers.items() if s.lost and s.fit_s > 0.0}

    def declare(self, servers: Collection[str]) -> None:
        """Those of the descriptor."""
        for name in self._servers.keys() - set(servers):
            del self._servers[name]
        for name in servers:
            self._servers.setdefault(name, _Server())

    def place(self, server: str, model: str, load_s: float) -> None:
        """A schedule says what it hosts; another model than before takes its time. Empty: nothing."""
        if (found := self._servers.get(server)) and self._models.get(server, "") != model:
            self._models[server] = model
            found.patience_s = max(found.patience_s, LOADING_S, LOADING_SHARE * load_s) if model else found.patience_s

    def hear(self, word: ServerWord) -> None:
        if word.server in self._servers:
            self._servers[word.server].word, self._servers[word.server].fresh = word, True
        else:
            self.unknown += 1

    def look(self, now_s: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Who is lost since the last look, and who is back."""
        passed_s = min(max(now_s - self._looked_s, 0.0), LOOK_PERIOD_S) if not math.isnan(self._looked_s) else 0.0
        self._looked_s = now_s
        for server in self._servers.values():
            server.quiet_s = 0.0 if server.fresh else server.quiet_s + passed_s
            server.fresh = False
        if all(server.quiet_s >= LOST_AFTER_S / 2 for server in self._servers.values()):
            return (), ()
        before = self.lost
        for name, server in self._servers.items():
            self._judge(server, self._fits(name, server), passed_s)
        now = self.lost
        return tuple(name for name in now if name not in before), tuple(name for name in before if name not in now)

    def _fits(self, name: str, server: _Server) -> bool:
        """It could serve what is asked of it; one that hosts nothing is fit when it says anything but that it is broken."""
        if server.word is None or server.quiet_s > 2 * LOOK_PERIOD_S:
            return False
        idle = not self._models.get(name) or server.lost
        return server.word.state is ServerState.READY or (idle and server.word.state is ServerState.LOADING)

    @staticmethod
    def _judge(server: _Server, fits: bool, passed_s: float) -> None:
        server.penalty *= 0.5 ** (passed_s / FORGIVEN_S)
        if fits:
            server.fit_s, server.unfit_s = server.fit_s + passed_s, 0.0
            if not server.lost:
                server.patience_s = LOST_AFTER_S
            elif server.fit_s >= server.back_after_s:
                server.lost, server.patience_s = False, LOST_AFTER_S
            return
        server.fit_s, server.unfit_s = 0.0, server.unfit_s + passed_s
        loads = server.word is not None and server.word.state is ServerState.LOADING and not server.quiet_s
        patience_s = server.patience_s if server.word is None or loads else LOST_AFTER_S
        if server.unfit_s >= patience_s and not server.lost:
            server.lost, server.penalty = True, server.penalty + 1.0
