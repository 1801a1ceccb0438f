"""Servers whose decisions are kept, in tests: through their journal, as records that would travel."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from ros2_rfm_serving.audit.chain import Page, records
from ros2_rfm_serving.audit.journal import Journal
from ros2_rfm_serving.audit.replay import Replayed, brains, replay
from ros2_rfm_serving.audit.servers.journal import ServerJournal
from ros2_rfm_serving.audit.servers.replay import ServerReplay
from ros2_rfm_serving.server import ModelServer


class Kept:
    """What a server decides from now on."""

    def __init__(self, server: ModelServer, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.pages: list[Page] = []
        self._times, self._listeners = itertools.count(1e6, 10.0), itertools.count(2)
        draw = itertools.count(1).__next__
        self.journal = Journal("server/s", "server", send=self.pages.append, stamp_s=lambda: 0.0, draw=draw)
        self.written = ServerJournal(self.journal, clock)
        self.written.follow(server, {})
        self.journal.listeners(1, 0.0)
        self.journal.tend(next(self._times))

    def snapshot(self) -> None:
        """Somebody else begins to listen."""
        now_s = next(self._times)
        self.written.write()
        self.journal.listeners(next(self._listeners), now_s)
        self.journal.tend(now_s)

    def records(self, failures: int = 0) -> list[dict[str, Any]]:
        """failures: chains that break off."""
        self.written.write()
        self.journal.close(next(self._times), "the test ends")
        assert self.journal.failures == failures, self.journal.problem
        return [record for page in self.pages for record in records(page)]


def again(kept: Sequence[Mapping[str, Any]]) -> Replayed:
    """One chain, whether or not it is as it was written."""
    page = Page(writer="server/s", run=1, first=kept[0]["n"], previous="", lines=tuple(map(orjson.dumps, kept)))
    (result,) = {id(one): one for one in replay([page], {"server": brains(ServerReplay)})}.values()
    return result
