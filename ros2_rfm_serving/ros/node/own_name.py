"""Unique names of servers and robots: every name is given, and one process alone has it.

A process looks for its name before it offers anything under it. The owner announces itself on a topic of its own, latched, so that
a busy owner is received too, and a killed one is not.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.duration import Duration
from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError, ConfigurationError
from ros2_rfm_serving.ros.node.diagnostics import Diagnostics, key_values
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.said import Hearer, Speaker
from ros2_rfm_serving.ros.node.timers import Turn, turns_of
from ros2_rfm_serving.ros.wire import bounded, convert, qos
from ros2_rfm_serving.types.names import CLAIM_LATE_S, CLAIM_S, DISPUTED, HELD, LOST, SETTLED_AFTER_S, NameClaim

LOOK_PERIOD_S, ARRIVES_S, LAST_WORD_S = 0.1, 1.0, 10.0
DOOR = "door"
"""Role in the certificate of a gateway."""


def named(kind: str, name: str) -> str:
    """Return `name` after a check.
    Raises: `ConfigurationError` when it is empty, because a default name could be another process'; `BadMessageError`."""
    if not name:
        raise nameless(kind)
    return convert.check_name(kind, name)


def nameless(kind: str) -> ConfigurationError:
    return ConfigurationError(
        "is empty; nothing is called anything by default", key=kind, fix=f"give it: -p {kind}:=<name as in the schedule>"
    )


class OwnName:
    """One name on the graph. It ends the process when another one turns out to have the name with precedence."""

    def __init__(self, node: Node, kind: str, name: str, topic: str) -> None:
        self.kind, self.name = kind, name
        self._node, self._claim = node, NameClaim(1 + secrets.randbelow(2**64 - 1))
        self._speaker, self._hearer = Speaker(name), Hearer.of_process()
        self._answered = 0
        """Process that was received last; 0: no other yet."""
        self._publisher = node.create_publisher(msg.NameClaim, topic, qos.NAME_CLAIM)
        self._subscription = bounded.hear(
            node, msg.NameClaim, topic, self._on_claim, qos.NAME_CLAIM_HEARD, self._refuse, prove=self._check
        )
        self._refused = self._unproven = 0
        self._settling: Turn | None = None
        self._is_gone = False
        self.report: Callable[[DiagnosticStatus], None] = lambda status: None
        """Publisher of statuses that have to be reported at once."""
        self._heard = False
        """Another process was received."""
        self._tell()

    @property
    def lost(self) -> bool:
        return self._claim.is_lost

    @property
    def problem(self) -> str:
        return f"another process is {self.kind} {self.name!r} already"

    @property
    def awaits_word(self) -> bool:
        """True if another process is on the topic and was not received yet: it is busy, or was killed a moment ago."""
        return not self._heard and self._node.count_publishers(self._publisher.topic_name) > 1

    def look(self) -> None:
        """Publish the claim again, and read arrivals without an executor; at most a full queue, so that a flood cannot block it."""
        self._tell()
        for _ in range(qos.NAME_CLAIM_HEARD.depth):
            if (taken := self._subscription.handle.take_message(msg.NameClaim, True)) is None:
                break
            try:
                claim, end = bounded.measured(taken[0], msg.NameClaim)
                self._check(claim, memoryview(taken[0])[:end])
                self._hear(claim)
            except BadMessageError as error:
                self._refuse(error)

    def hold(self) -> None:
        """Take the name, because no process has objected; the executor receives from now on."""
        self._claim.acquire(clock())
        self._tell()
        self._settling = turns_of(self._node).once(SETTLED_AFTER_S, self._tell)

    def diagnosis(self) -> DiagnosticStatus:
        """Return the diagnostics of `<name>: name`."""
        level, message, claim = DiagnosticStatus.OK, "nobody else has it", HELD
        if self.lost:
            level, message, claim = DiagnosticStatus.ERROR, self.problem, LOST
        elif self._claim.is_disputed(clock()):
            level, message = DiagnosticStatus.WARN, f"another process wants to be {self.kind} {self.name!r} as well"
            claim = DISPUTED
        values = key_values(
            {
                "claim": claim,
                "processes refused": len(self._claim.intruders),
                "process": f"{self._claim.process:x}",
                "messages refused": self._refused,
                "claims unproven": self._unproven,
            }
        )
        return DiagnosticStatus(level=level, name=f"{self.name}: name", message=message, hardware_id=self.name, values=values)

    def last_word(self) -> None:
        """Make sure that the owner of the name receives this process' claim before the end: it may not have discovered it yet."""
        end_s = clock() + LAST_WORD_S
        while self._publisher.get_subscription_count() < 2 and clock() < end_s:  # its own, and the other process'
            time.sleep(LOOK_PERIOD_S)
        self._tell()
        end_s = clock() + LAST_WORD_S
        while clock() < end_s and not self._publisher.wait_for_all_acked(Duration(seconds=ARRIVES_S)):
            pass  # a single call of that length would count as hanging

    def destroy(self) -> None:
        self._is_gone = True
        self._node.destroy_subscription(self._subscription)
        self._node.destroy_publisher(self._publisher)
        if self._settling is not None:
            self._settling.cancel()

    def settle(self) -> None:
        """Treat the name as held since `SETTLED_AFTER_S`."""
        self._claim.acquire(clock() - SETTLED_AFTER_S)
        self._tell()

    def _tell(self) -> None:
        message = msg.NameClaim(stage=int(self._claim.stage(clock())), process=self._claim.process, heard=self._answered)
        message.header.frame_id = self.name
        self._publisher.publish(self._speaker.signed(convert.stamped(message, self._node)))

    def _check(self, message: msg.NameClaim, data: memoryview) -> None:
        """Raise `BadMessageError` unless the claim is signed by the name's owner, or by a gateway, which acts for robots."""
        if message.process == self._claim.process or (who := self._hearer.who(message, data)) is None:
            return
        if who.name != self.name and who.role != DOOR:
            raise BadMessageError("unproven", f"{who.name} claims the name {self.name!r}")

    def _hear(self, message: msg.NameClaim) -> None:
        """Process a claim. With certificates a claim counts when it answers this process' number, which no process knew before.
        Any other claim may be an old recording: it is answered, so that a live claimant repeats it."""
        if message.process != self._claim.process:
            self._answered = message.process
            if self._hearer.demands and message.heard != self._claim.process:
                if not self.lost:
                    self._tell()
                return
        before = len(self._claim.intruders)
        self._heard = self._heard or message.process != self._claim.process
        self._claim.on_claim(message.process, message.stage, clock())
        if message.process != self._claim.process and not self.lost and self._claim.is_held:
            self._tell()  # with the time held so far; and the latched message has been seen to arrive seconds late
        if len(self._claim.intruders) > before:
            self._node.get_logger().error(f"another process wants to be {self.kind} {self.name!r} as well; it is refused")

    def _refuse(self, error: BadMessageError) -> None:
        if error.kind == "unproven":
            self._unproven += 1
        else:
            self._refused += 1

    def _on_claim(self, message: msg.NameClaim) -> None:
        if self._is_gone:  # the message was under way when the name was given up
            return
        self._hear(message)
        if self.lost:
            self._node.get_logger().fatal(f"{self.problem}; this one ends")
            self.report(self.diagnosis())
            raise SystemExit(EXIT_CONFIGURATION)


def say_lost(node: Node, names: Iterable[OwnName]) -> None:
    """Report lost names once more when the process has come to rest. The immediate report may have preceded discovery, and two
    processes learn late of each other on just the machines where that is slow."""
    lost = [name.diagnosis() for name in names if name.lost]
    if lost:
        Diagnostics(node, lambda: ()).last_words(*lost)


def claim(node: Node, kind: str, topics: Iterable[tuple[str, str]]) -> list[OwnName]:
    """Claim (name, topic) of all names of this node, and return them. Nothing may be offered before. This takes `CLAIM_S`, at
    most `CLAIM_LATE_S`. Raises: `ConfigurationError` when another process has one of them, which `/diagnostics` then has
    reported."""
    names = [OwnName(node, kind, name, topic) for name, topic in topics]
    diagnostics = Diagnostics(node, lambda: ())  # created now, so that it is discovered when it is needed
    begin_s = clock()
    while (looked_s := clock() - begin_s) < CLAIM_S or (looked_s < CLAIM_LATE_S and any(name.awaits_word for name in names)):
        for name in names:
            name.look()
        if all(name.lost for name in names):
            break
        time.sleep(LOOK_PERIOD_S)
    lost = [name for name in names if name.lost]
    if lost:
        for name in lost:
            name.last_word()
        diagnostics.last_words(*[name.diagnosis() for name in lost])
        for name in names:
            name.destroy()
    diagnostics.destroy()
    if lost:
        raise ConfigurationError(lost[0].problem, key=kind, fix="give each process a name of its own, or end the other one")
    for name in names:
        name.hold()
    return names
