"""Connection of one robot to the servers."""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ros2_rfm_serving.faults import Delivery, Direction, FaultyWire
from ros2_rfm_serving.simulation.conditions import NetworkConditions

AT_ONCE = (Delivery(0.0),)
Message = TypeVar("Message")


@dataclass(slots=True)
class Traffic:
    """Counts of all requests: sent = answered + late + lost + refused + dropped + in flight."""

    sent: int = 0
    """Requests including the copies that a network made of them and of replies."""
    answered: int = 0
    """Answers that reached the robot and belonged to its latest request."""
    late: int = 0
    """Requests answered when the robot no longer waited, twice, or with an unusable answer."""
    lost: int = 0
    """Requests that were lost in the network, themselves or their reply, or sent to a server that was down."""
    refused: int = 0
    """Requests that the server refused."""
    dropped: int = 0
    """Requests that the server dropped: for a newer one, with a session that ended, or when it crashed."""
    travelling: int = 0
    """Requests and replies on the wire now."""

    def arrives(self, receive: Callable[[Message], None], message: Message) -> None:
        """Deliver a message that has left. On a perfect connection it neither leaves nor arrives."""
        self.travelling -= 1
        receive(message)

    def sets_out(self, num_copies: int, *, anew: bool) -> None:
        """Record a request (`anew`) or a reply, with the number of copies that the network delivers."""
        self.travelling += num_copies
        if num_copies == 1:
            self.sent += anew
            return
        self.sent += (num_copies or 1) - (not anew)
        self.lost += not num_copies


class Wire:
    """Delays, losses and faults of one robot's messages. `faults_rng` is only for the network's `FaultPlan`."""

    def __init__(self, network: NetworkConditions, robot: str, rng: random.Random, faults_rng: random.Random) -> None:
        self._network, self._rng = network, rng
        self._cuts = [cut for cut in network.cuts if not cut.robots or robot in cut.robots]
        self._times_s = [time_s for time_s, _ in network.trace]
        self._perfect = network.is_perfect
        self._at_once = self._perfect and network.faults.is_clean
        self._never_cut = not self._cuts and not network.faults.cuts
        self._faults = None if network.faults.is_clean else FaultyWire(network.faults, faults_rng)

    def connected(self, direction: Direction, now_s: float) -> bool:
        """Return whether a message passes that is repeated, so that neither its delay nor a loss matters."""
        if self._never_cut:
            return True
        cut = any(cut.concerns(direction, now_s) for cut in self._cuts)
        return not cut and self._network.faults.connected(direction, now_s)

    def deliveries(self, direction: Direction, now_s: float, *, reliable: bool = False) -> tuple[Delivery, ...]:
        """Return the copies of a message that is sent now; empty: it never arrives. A reliable message is lost only in a cut."""
        if self._at_once:
            return AT_ONCE
        delay_s = self._delay_s(direction, now_s, reliable)
        if delay_s is None:
            return ()
        if self._faults is None:
            return (Delivery(delay_s),)
        copies = self._faults.deliveries(direction, now_s, reliable=reliable)
        return tuple([copy._replace(delay_s=delay_s + copy.delay_s) for copy in copies])

    def _delay_s(self, direction: Direction, now_s: float, reliable: bool) -> float | None:
        if self._perfect:
            return 0.0
        network = self._network
        if any(cut.concerns(direction, now_s) for cut in self._cuts):
            return None
        if not reliable and network.loss and self._rng.random() < network.loss:
            return None
        delay_s = self._traced_s(now_s) if self._times_s else network.latency_s
        return delay_s + self._rng.expovariate(1.0 / network.jitter_s) if network.jitter_s else delay_s

    def _traced_s(self, now_s: float) -> float:
        """Return the delay of the trace, which begins at its first time and repeats after its last."""
        first_s, last_s = self._times_s[0], self._times_s[-1]
        time_s = first_s + now_s % (last_s - first_s) if last_s > first_s else first_s
        return self._network.trace[bisect.bisect_right(self._times_s, time_s) - 1][1]
