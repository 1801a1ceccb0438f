"""Times of a sensor's readings, by their stamps, by `/clock`, or by their arrival, and the diagnostics about them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock

from ros2_rfm_serving.robot.sender_clock import SenderClock
from ros2_rfm_serving.robot.simulated_time import SimulatedTime
from ros2_rfm_serving.ros.node.runtime import clock

CLOCK = "/clock"
CLOCK_QOS = QoSProfile(
    reliability=ReliabilityPolicy.BEST_EFFORT,
    history=HistoryPolicy.KEEP_LAST,
    depth=1,
    durability=DurabilityPolicy.VOLATILE,
)
"""QoS with which `rclpy/time_source.py` subscribes to it."""
OF_NODE = "_rfm_serving_simulated_time"
"""Attribute of a node."""
OLD_WINDOW_S = 5.0
"""Window of the share of messages that were old on arrival; the previous window of that length counts as well."""
MAX_SOURCES = 64
"""Maximum number of publishers that are distinguished on one topic; beyond it messages name other joints every time."""


class Sender:
    """One of the publishers on a topic."""

    __slots__ = ("_arrived_s", "_is_simulated", "_max_age_s", "_repeats", "_stamp_s", "_taken_s", "_was_old", "clock", "step_s")

    def __init__(self, max_age_s: float) -> None:
        self._max_age_s = max_age_s
        self.clock = SenderClock(max_age_s)
        self._is_simulated = False
        """Its last stamp was of the time of `/clock`."""
        self._stamp_s = self._arrived_s = self._taken_s = math.nan
        """Stamp and time of its last reading; `_arrived_s`: time of its first arrival."""
        self._was_old = False
        self._repeats = 0
        """Number of messages that repeated the last stamp."""
        self.step_s = 0.0
        """Difference of the last two stamps when the earlier one came with several messages; 0: each message has its own stamp."""

    def taken_s(self, stamp_s: float, now_s: float, by_clock_s: float | None) -> float:
        """Return the time of a reading. by_clock_s: the same by `/clock`; None: its stamp is not of that time."""
        if by_clock_s is None and self._is_simulated and self._was_old:  # a stuck sensor must not become new by age
            self.clock.begin(self._stamp_s, self._taken_s)
        self._is_simulated = by_clock_s is not None
        taken_s = self.clock.taken_s(stamp_s, now_s) if by_clock_s is None else by_clock_s
        if stamp_s != self._stamp_s:
            self.step_s = stamp_s - self._stamp_s if self._repeats else 0.0
            self._stamp_s, self._arrived_s, self._repeats = stamp_s, now_s, 0
        else:
            self._repeats += 1
        self._taken_s = min(taken_s, self._arrived_s)
        self._was_old = now_s - self._taken_s > self._max_age_s
        return self._taken_s


class OldShare:
    """Share of messages that were old on arrival, over the last `OLD_WINDOW_S` to twice as long."""

    def __init__(self) -> None:
        self._began_s = -math.inf
        self._counts = self._before = (0, 0)
        """(messages, old ones) of this window, and of the one before."""

    def add(self, now_s: float, is_old: bool) -> None:
        if now_s - self._began_s >= OLD_WINDOW_S:
            self._before = self._counts if now_s - self._began_s < 2.0 * OLD_WINDOW_S else (0, 0)
            self._began_s, self._counts = now_s, (0, 0)
        num, num_old = self._counts
        self._counts = num + 1, num_old + is_old

    @property
    def share(self) -> float:
        """Share from 0 to 1; 0 without messages."""
        (num, num_old), (num_before, num_old_before) = self._counts, self._before
        return (num_old + num_old_before) / max(1, num + num_before)


class ReadingTimes:
    """Times of one sensor, for one thread."""

    def __init__(self, name: str, max_age_s: float, *, by_arrival: bool = False, simulated: SimulatedTime | None = None) -> None:
        """Create the state. simulated: time of `/clock`, where the node uses that."""
        self.name = name
        self.arrived_s = -math.inf
        """Time at which the last message arrived, usable or not."""
        self.interval_s = math.nan
        """Time since the message before it; NaN: there was none."""
        self.taken_last_s = -math.inf
        """Time of the last reading."""
        self._max_age_s, self._by_arrival, self._simulated = max_age_s, by_arrival, simulated
        self._senders: dict[tuple[str, ...], Sender] = {}
        self._source = "arrival"
        self._sender: Sender | None = None
        self._old = OldShare()

    def taken_s(self, message: Any, now_s: float, sender: tuple[str, ...] = ()) -> float:
        """Return the time of a reading that has just arrived. sender: one of several on the topic, each with its own clock."""
        if self.arrived_s > -math.inf:
            self.interval_s = now_s - self.arrived_s
        self.arrived_s = now_s
        self.taken_last_s = self._taken_s(message, now_s, sender)
        self._old.add(now_s, now_s - self.taken_last_s > self._max_age_s)
        return self.taken_last_s

    def _taken_s(self, message: Any, now_s: float, sender: tuple[str, ...]) -> float:
        stamp = getattr(getattr(message, "header", None), "stamp", None)
        stamp_s = stamp.sec + 1e-9 * stamp.nanosec if stamp is not None else 0.0
        if self._by_arrival or stamp_s == 0.0:
            self._source = "arrival"
            return now_s
        found = self._sender = self._senders.get(sender) or self._new_sender(sender)
        by_clock_s = None if self._simulated is None else self._simulated.taken_s(stamp_s, now_s)
        self._source = "stamp" if by_clock_s is None else CLOCK
        return found.taken_s(stamp_s, now_s, by_clock_s)

    def _new_sender(self, sender: tuple[str, ...]) -> Sender:
        if len(self._senders) > MAX_SOURCES:
            self._senders.clear()
        return self._senders.setdefault(sender, Sender(self._max_age_s))

    def values(self, now_s: float) -> dict[str, object]:
        """Return the diagnostics values."""
        found: dict[str, object] = {
            f"arrival_age_s {self.name}": now_s - self.arrived_s,
            f"arrival_interval_s {self.name}": self.interval_s,
            f"reading_age_s {self.name}": now_s - self.taken_last_s,
            f"time_source {self.name}": self._source,
            f"old_share {self.name}": f"{self._old.share:.3f}",
        }
        if self._source == CLOCK and self._simulated is not None:
            pace, offset_s, changes = self._simulated.pace, self._simulated.offset_s(now_s), 0
        elif self._source == "stamp" and self._sender is not None:
            sender = self._sender.clock
            pace, offset_s, changes = sender.pace, sender.offset_s(now_s), sender.num_changes
        else:
            return found
        if self._sender is not None and self._sender.step_s > self._max_age_s:
            found[f"stamp_step_s {self.name}"] = f"{self._sender.step_s:.3f}"
        ahead_s = offset_s + now_s - time.time()
        return found | {
            f"clock_pace {self.name}": f"{pace:.4f}",
            f"clock_offset_s {self.name}": f"{ahead_s:.3f}",
            f"clock_changes {self.name}": changes,
        }


def simulated_time_of(node: Node) -> SimulatedTime | None:
    """Return the simulated time, one for all robots of a node; None: its `use_sim_time` is false."""
    if not (node.has_parameter("use_sim_time") and node.get_parameter("use_sim_time").value):
        return None
    found: SimulatedTime | None = getattr(node, OF_NODE, None)
    if found is None:
        found = SimulatedTime()
        setattr(node, OF_NODE, found)
        node.create_subscription(Clock, CLOCK, _receiver(found), CLOCK_QOS)
    return found


def clock_problem(node: Node) -> str:
    """Return why the simulated time of a node does not advance; empty: it does, or the node does not use it."""
    if simulated_time_of(node) is None or node.count_publishers(CLOCK):
        return ""
    return f"use_sim_time is true, and nobody publishes {CLOCK}"


def _receiver(simulated: SimulatedTime) -> Callable[[Any], None]:
    def receive(message: Any) -> None:
        simulated.receive(message.clock.sec + 1e-9 * message.clock.nanosec, clock())

    return receive
