"""Monitor of a Ray cluster's head, which may be lost and come back.

No robot needs the head. Ray itself waits for it for a minute, and then ends every node's part of it, with all servers, and the
driver process of this factory (`link.py`). A head that comes back is another one, which knows no actor, unless Ray keeps its state
elsewhere (Redis). So the monitor looks for it, and asks; when it does not know this driver, everything is started anew there.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Protocol

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.on_ray.words import Answer, Begin, Joined, Look, Order, Recall, Recalled, Refused, Told
from ros2_rfm_serving.operate.supervisor import HEALTHY_AFTER_S

ADDRESS = "RAY_ADDRESS"
LOCAL = "local"
"""Ray's address of a new local cluster, whatever else runs."""
RAYS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
RAYS_PATIENCE_S = 60.0
"""Default without that variable."""
KNOCK_PERIOD_S, KNOCK_S = 2.0, 1.0
"""Period of connection attempts that succeed; timeout of one, and the period of those that fail."""
LOST_S = 5.0
"""Time without an answer after which the head is lost."""
RECALL_S = 10.0
"""Time for a head that has come back to tell whether it knows this driver."""
JOIN_S = 60.0
"""Time to join a cluster whose head has come back; Ray itself would wait for minutes."""
RETRY_S = 3.0


class Speaker(Protocol):
    """Interface of `Link`."""

    @property
    def ended(self) -> str: ...
    def send(self, order: Order, /) -> None: ...
    def heard(self) -> Iterable[Answer]: ...
    def wait(self, seconds: float) -> Answer | None: ...
    def end(self, patience_s: float = 0.0) -> None: ...


class State(Enum):
    AT_WORK = auto()
    LOST = auto()
    RECALLING = auto()
    """The head answers again, and is asked whether it knows this driver."""
    JOINING = auto()
    GIVEN_UP = auto()


def asked_address(option: str) -> str:
    """Return the cluster's address; `LOCAL` where none is named."""
    return option or os.environ.get(ADDRESS, "") or LOCAL


def reach(address: str, patience_s: float) -> None:
    """Connect to the address, and close the connection; do nothing for one of Ray's own names, which has no port.
    Raises: `OSError`, or `OverflowError` for an invalid port."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=patience_s).close()


def knock(address: str) -> bool:
    """Return whether the address can be reached."""
    try:
        reach(address, KNOCK_S)
    except (OSError, OverflowError):
        return False
    return True


class Head:
    """Monitor of the head, from the start of the factory on its cluster. `watch` is to be called periodically; it never blocks."""

    def __init__(
        self,
        link: Speaker,
        address: str,
        *,
        connect: Callable[[], Speaker],
        again: Callable[[Joined], Begin],
        patience_s: float,
        is_local: bool = False,
        knocks: Callable[[str], bool] = knock,
    ) -> None:
        """Create the monitor.

        connect: begins to join once more. again: returns the order to start everything anew; raises `ConfigurationError` while
        there is no room. patience_s: time to wait for a lost head; then all is given up. is_local: it was started from here, and
        will not come back."""
        self.link, self.address, self.state = link, address, State.AT_WORK
        self._connect, self._again, self._knocks = connect, again, knocks
        self._patience_s, self._is_local = patience_s, is_local
        self._since_s = math.inf
        """Time since which it is in this state; inf: until `watch`."""
        self._answered_s, self._has_answered, self._next_knock_s = math.inf, True, -math.inf
        self._lost_s = math.inf
        """Time at which the head was lost; inf: it was not, or has been back for long enough."""
        self._why = ""
        """Reason why the last attempt to join failed."""
        self._is_told_of_end = False

    @property
    def has_begun(self) -> bool:
        """True if there is a driver that can be asked to end."""
        return self.state in (State.AT_WORK, State.LOST, State.RECALLING) and not self.link.ended

    def watch(self, now_s: float) -> tuple[list[str], list[Told]]:
        """Return messages about events, and the driver's reports about the actors."""
        self._since_s, self._answered_s = min(self._since_s, now_s), min(self._answered_s, now_s)
        heard = list(self.link.heard())
        steps = {
            State.AT_WORK: self._at_work,
            State.LOST: self._look_for_it,
            State.RECALLING: self._recall,
            State.JOINING: self._join,
        }
        step = steps.get(self.state)
        return step(heard, now_s) if step else [], [answer for answer in heard if isinstance(answer, Told)]

    def _at_work(self, heard: list[Answer], now_s: float) -> list[str]:
        if self._lost_s < math.inf and now_s - self._since_s > HEALTHY_AFTER_S:
            self._lost_s = math.inf
        if self.link.ended:
            return self._lose(f"what speaks with Ray has ended ({self.link.ended})", now_s)
        if not self._answers(now_s) and now_s - self._answered_s > LOST_S:
            return self._lose(f"the head of the Ray cluster at {self.address} does not answer", now_s)
        return []

    def _lose(self, what: str, now_s: float) -> list[str]:
        self._enter(State.LOST, now_s)
        self._lost_s, self._why, self._is_told_of_end = min(self._lost_s, now_s), "", False
        if self._is_local or self.link.ended:
            left = "servers end, and robots stand until there is one again"
        else:
            until = f"for {_rays_patience_s():g} s by Ray's own word ({RAYS_PATIENCE})"
            left = f"what runs goes on, {until}, and nobody starts again what ends"
        return [f"{what}: {left}. It is waited for, {self._patience_s:g} s (--ray-patience)"]

    def _look_for_it(self, heard: list[Answer], now_s: float) -> list[str]:
        if self._is_over(now_s):
            return self._give_up(now_s)
        if self._is_local:
            return self._begin_to_join(now_s) if now_s >= self._next_knock_s else []
        if self._answers(now_s):
            if self.link.ended:
                return self._begin_to_join(now_s)
            self.link.send(Recall())
            self._enter(State.RECALLING, now_s)
        elif self.link.ended and not self._is_told_of_end:
            self._is_told_of_end = True
            return ["Ray has given up its lost head: servers end, and robots stand until it is back"]
        return []

    def _recall(self, heard: list[Answer], now_s: float) -> list[str]:
        if Recalled(is_known=True) in heard:
            self._enter(State.AT_WORK, now_s)
            return [f"the head of the Ray cluster at {self.address} is back, and knows what it knew"]
        if Recalled(is_known=False) in heard or self.link.ended or now_s - self._since_s > RECALL_S:
            return self._begin_to_join(now_s)
        return []

    def _begin_to_join(self, now_s: float) -> list[str]:
        self.link.end()
        self.link = self._connect()
        self._enter(State.JOINING, now_s)
        return []

    def _join(self, heard: list[Answer], now_s: float) -> list[str]:
        for answer in heard:
            if isinstance(answer, Joined):
                return self._begin_anew(answer, now_s)
            if isinstance(answer, Refused):
                self._why = answer.problem
                return self._fail(now_s)
        if self._is_over(now_s):
            return self._give_up(now_s)
        if self.link.ended or now_s - self._since_s > JOIN_S:
            self._why = f"what speaks with Ray has ended ({self.link.ended})" if self.link.ended else "Ray does not answer"
            return self._fail(now_s)
        return []

    def _begin_anew(self, there: Joined, now_s: float) -> list[str]:
        try:
            begin = self._again(there)
        except ConfigurationError as error:  # its nodes come one after the other
            self._why = str(error)
            if self._is_over(now_s):
                return self._give_up(now_s)
            self.link.send(Look())
            return []
        self.link.send(begin)
        self.address = there.address
        self._enter(State.AT_WORK, now_s)
        nodes = ", ".join(node.address for node in there.nodes)
        return [f"a Ray cluster is there again at {there.address}, nodes {nodes}: scheduler and servers are started anew"]

    def _fail(self, now_s: float) -> list[str]:
        self.link.end()
        self._enter(State.LOST, now_s)
        self._next_knock_s, self._has_answered = now_s + RETRY_S, False
        return []

    def _give_up(self, now_s: float) -> list[str]:
        self.link.end()
        self._enter(State.GIVEN_UP, now_s)
        why = f": {self._why}" if self._why else ""
        return [f"no head of the Ray cluster at {self.address} for {self._patience_s:g} s, given up{why}"]

    def _is_over(self, now_s: float) -> bool:
        return now_s - self._lost_s >= self._patience_s

    def _enter(self, state: State, now_s: float) -> None:
        self.state, self._since_s, self._answered_s = state, now_s, now_s

    def _answers(self, now_s: float) -> bool:
        """Return whether the head answers now; between two attempts the last result counts."""
        if now_s >= self._next_knock_s:
            self._has_answered = self._knocks(self.address)
            self._next_knock_s = now_s + (KNOCK_PERIOD_S if self._has_answered else KNOCK_S)
            if self._has_answered:
                self._answered_s = now_s
        return self._has_answered


def _rays_patience_s() -> float:
    try:
        return float(os.environ.get(RAYS_PATIENCE, ""))
    except ValueError:
        return RAYS_PATIENCE_S
