"""Links of hosts in virtual time (`hosts: {<name>: {round_trip_ms, bandwidth_mbit_s}}`), with their distances and queues.

The declared network of a robot (`Factory.network_of`) is that to the farthest host that serves, including the transmission time of
a message on a free link. On each link one message follows the other, separately in each direction.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.faults import Delivery, Direction
from ros2_rfm_serving.scheduler.link_load import LinkDirection, links_of


class Passage(NamedTuple):
    """Transmission of a message over one link."""

    way: LinkDirection
    takes_s: float
    added_s: float
    """Part of that time which the declared network does not include."""


class NetworkLinks:
    """Links of one factory, none until `lay` is called."""

    def __init__(self) -> None:
        self.are_laid = False
        self._tasks: dict[str, str] = {}
        """Robot -> task."""
        self._nearer_s: dict[tuple[str, str], float] = {}
        """(task, server) -> time by which each way is shorter than declared."""
        self._words_nearer_s: dict[tuple[str, str], float] = {}
        """The same for a message of a few bytes, whose transmission time is negligible."""
        self._gpus: dict[str, str] = {}
        """Server -> the server whose GPU it shares."""
        self._passages: dict[tuple[str, str, Direction], tuple[Passage, ...]] = {}
        """(task, server, direction) -> transmissions of a message between robots of the task and the server, in the order of its
        way."""
        self._free_s: dict[LinkDirection, float] = defaultdict(float)

    def lay(self, factory: Factory) -> None:
        links = links_of(factory)
        seated = {server: factory.hosts[seat.host] for server, seat in factory.gpu_assignments.items()} if factory.hosts else {}
        for task in factory.tasks:
            own = factory.network_of(task)
            far_ms = {server: host.round_trip_with_ms(own.request_kb) for server, host in seated.items()}
            for server, ms in far_ms.items():
                self._nearer_s[task, server] = (max(far_ms.values()) - ms) / 2e3
                self._words_nearer_s[task, server] = (max(far_ms.values()) - seated[server].round_trip_ms) / 2e3
                for direction in Direction:
                    self._passages[task, server, direction] = ()
        if links:
            self._link(factory)
        self.are_laid = any(self._nearer_s.values()) or any(self._passages.values())

    def _link(self, factory: Factory) -> None:
        links = links_of(factory)
        assert links
        takes = {host: mbit_s / links.share for host, mbit_s in links.takes_mbit_s.items()}
        for task, server, direction in self._passages:
            crossed = links.of_request(task, links.hosts[server])
            there = [(way, mbit) for way, mbit in crossed if way.outward == (way.host != links.hosts[server])]
            back = [(way, mbit) for way, mbit in crossed if (way, mbit) not in there]
            mine = there[::-1] if direction is Direction.UP else back  # out of the robots' host, then into the server's host
            self._passages[task, server, direction] = tuple(
                Passage(way, mbit / takes[way.host], 0.0 if way.host == links.hosts[server] else mbit / takes[way.host])
                for way, mbit in mine
            )

    def lead(self, robot: str, task: str) -> None:
        """Record the task of a robot, which determines its links."""
        self._tasks[robot] = task

    def share(self, server: str, gpu: str) -> None:
        """Record that a server runs on the GPU of another one."""
        self._gpus[server] = gpu

    def delivered(
        self, copies: tuple[Delivery, ...], robot: str, server: str, direction: Direction, now_s: float
    ) -> tuple[Delivery, ...]:
        """Return the copies of a message that is sent now, with the delays of the links in place of the declared network's.

        A message that is lost has used the links all the same.
        """
        task, seat = self._tasks[robot], self._gpus.get(server, server)
        nearer_s = self._nearer_s.get((task, seat), 0.0)
        more_s = self._waits_s(self._passages.get((task, seat, direction), ()), now_s)
        return tuple([copy._replace(delay_s=max(copy.delay_s - nearer_s, 0.0) + more_s) for copy in copies])

    def broadcast(self, copies: tuple[Delivery, ...], robot: str, server: str) -> tuple[Delivery, ...]:
        """Return the copies of a few bytes about a session, in either direction: they use no link capacity, and do not queue."""
        if not self.are_laid:
            return copies
        nearer_s = self._words_nearer_s.get((self._tasks[robot], self._gpus.get(server, server)), 0.0)
        return tuple([copy._replace(delay_s=max(copy.delay_s - nearer_s, 0.0)) for copy in copies])

    def _waits_s(self, passages: tuple[Passage, ...], now_s: float) -> float:
        at_s, more_s = now_s, 0.0
        for passage in passages:
            begins_s = max(at_s, self._free_s[passage.way])
            more_s += begins_s - at_s + passage.added_s
            at_s = self._free_s[passage.way] = begins_s + passage.takes_s
        return more_s
