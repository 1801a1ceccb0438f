"""Messages of a recording beside what robots and servers noted of them: commands, observations, chunks, judgements.

A recorder's digests say that a message is as it came to the recorder; the records say that it is what a process sent or got. In a
recording without digests they are all that there is. Commands and observations travel best effort: that one is not in the
recording is no finding, and is said in a note.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.bag import OBSERVATION, Message
from ros2_rfm_serving.audit.findings import Finding, Kind
from ros2_rfm_serving.audit.servers.observations import id_of, observation_of, tensor_of
from ros2_rfm_serving.audit.servers.records import REPLY, REQUEST, digest_of, inputs_of
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.types import RequestId

CHUNK, JUDGEMENT = "rfm_serving/msg/ActionChunk", "rfm_serving/msg/Judgement"
ARRAY, TRAJECTORY = "std_msgs/msg/Float64MultiArray", "trajectory_msgs/msg/JointTrajectory"
ROBOT, SERVER = "robot/", "server/"
LATE_NS, EARLY_NS = 2_000_000_000, 20_000_000
"""By how much a command may reach the recorder after its control period, and before, by clocks that are estimated."""
SCALED = 5
"""Commands of which none is any control period's: they are published in other units than the records have."""
ID = ("robot", "component", "session_epoch", "episode", "sequence")
STAMP_AT = 4
"""Of an audit page: its header's stamp, in CDR."""


class _Came(NamedTuple):
    topic: str
    type: str
    time_ns: int
    value: Any


@dataclass
class _Pairs:
    """What one side's records say of requests, and the messages that belong to them. Whichever comes second meets the other."""

    said: dict[RequestId, tuple[Any, int]] = field(default_factory=dict)
    """Value, and when, by the recorder's clock: of which no message came."""
    came: dict[RequestId, list[_Came]] = field(default_factory=dict)
    """That no record has."""
    met: set[RequestId] = field(default_factory=set)

    def say(self, key: RequestId, value: Any, time_ns: int) -> None:
        if any(one.value == value for one in self.came.get(key, ())):
            self.met.add(key)
            self.came[key] = [one for one in self.came[key] if one.value != value]
        elif key not in self.met:
            self.said[key] = value, time_ns

    def come(self, key: RequestId, one: _Came) -> None:
        if key in self.said and self.said[key][0] == one.value:
            del self.said[key]
            self.met.add(key)
        else:
            self.came.setdefault(key, []).append(one)

    def differing(self) -> list[_Came]:
        """Messages of a request that the records have otherwise."""
        return [one for key in self.said for one in self.came.get(key, ())[:1]]


@dataclass
class _Commands:
    """Of one robot."""

    ticks: list[tuple[int, bytes]] = field(default_factory=list)
    """When, by the writer's clock (ns), and what went out."""
    came: list[_Came] = field(default_factory=list)
    stretches: list[list[int]] = field(default_factory=list)
    """Of the writer's clock (ns), first and last, in which none of its records is missing."""
    _next: tuple[int, int] = (0, 0)
    """Run and number of the record that comes next in a stretch."""

    def note(self, run: int, number: int, time_ns: int) -> None:
        """It has noted a record."""
        if (run, number) != self._next or not self.stretches:
            self.stretches.append([time_ns, time_ns])
        self.stretches[-1][1] = max(self.stretches[-1][1], time_ns)
        self._next = run, number + 1

    def covers(self, time_ns: int) -> bool:
        """A command that came then is of a control period that is recorded."""
        return any(begins_ns + LATE_NS <= time_ns <= ends_ns for begins_ns, ends_ns in self.stretches)


class Compared:
    """`came` for each message, `heard` and `record` for pages and their records, in any order; `end`."""

    def __init__(self, read: Callable[[Message], Any]) -> None:
        """read: an object with a message's fields; raises `RfmError`."""
        self._read = read
        self._replies, self._requests, self._taken = _Pairs(), _Pairs(), _Pairs()
        """By servers: what they answered, what they were asked. By robots: what they took."""
        self._commands: defaultdict[str, _Commands] = defaultdict(_Commands)
        self._stamps: dict[tuple[str, int], float] = {}
        """Of a chain: ROS time at t = 0 by its writer's clock, s."""
        self._behind_ns: dict[str, int] = {}
        """Writer -> how far its clock is behind the recorder's, and the quickest page's way."""
        self._first_ns: dict[str, int] = {}
        """Topic -> its first message."""
        self._ends_ns = 0
        self._unread: Counter[str] = Counter()

    # --- messages ---

    def came(self, message: Message) -> None:
        """What cannot be read is counted: a note says so."""
        self._first_ns.setdefault(message.topic, message.time_ns)
        self._ends_ns = max(self._ends_ns, message.time_ns)
        take = TAKES.get(message.type)
        if take is None:
            return
        try:
            take(self, message)
        except (RfmError, AttributeError, LookupError, TypeError, ValueError):
            self._unread[message.topic] += 1

    def _chunk(self, message: Message) -> None:
        read = self._read(message)
        value = digest_of(tensor_of(read.chunk_model), tensor_of(read.chunk_robot))
        one, key = _Came(message.topic, message.type, message.time_ns, value), id_of(read.id)
        self._replies.come(key, one)
        self._taken.come(key, one)

    def _judgement(self, message: Message) -> None:
        read = self._read(message)
        one = _Came(message.topic, message.type, message.time_ns, (str(read.verdict), str(read.text)))
        self._replies.come(id_of(read.id), one)

    def _observation(self, message: Message) -> None:
        observation = observation_of(self._read(message))
        images = frozenset((image.camera, codec.digest(image.data)) for image in observation.images)
        value = inputs_of(observation), images, observation.stamp_ns
        self._requests.come(observation.id, _Came(message.topic, message.type, message.time_ns, value))

    def _command(self, message: Message) -> None:
        robot, _, leaf = message.topic.rpartition("/")
        if leaf != "command":
            return
        read = self._read(message)
        if message.type == TRAJECTORY:
            if len(read.points) != 1:
                return
            values = next((found for name in ("positions", "velocities") if len(found := getattr(read.points[0], name))), ())
        else:
            values = read.data
        one = _Came(message.topic, message.type, message.time_ns, _packed(values))
        self._commands[robot.rpartition("/")[2]].came.append(one)

    # --- records ---

    def heard(self, writer: str, run: int, data: bytes, time_ns: int) -> None:
        """A page of that chain: bytes and time of its message."""
        if len(data) >= STAMP_AT + 8:
            seconds, nanoseconds = struct.unpack_from("<iI", data, STAMP_AT)
            behind_ns = time_ns - (seconds * 1_000_000_000 + nanoseconds)
            self._behind_ns[writer] = min(behind_ns, self._behind_ns.get(writer, behind_ns))

    def record(self, writer: str, run: int, record: Mapping[str, Any]) -> None:
        """Raises: `RfmError`, and what records raise that nobody wrote so."""
        kind, now_s = record.get("kind"), float(record["t"])
        if "stamp" in record:
            self._stamps[writer, run] = float(record["stamp"]) - now_s
        time_ns = int((self._stamps.get((writer, run), 0.0) + now_s) * 1e9)
        if writer.startswith(ROBOT):
            self._commands[writer.removeprefix(ROBOT)].note(run, int(record["n"]), time_ns)
            self._robots(writer.removeprefix(ROBOT), kind, record, time_ns)
        elif writer.startswith(SERVER):
            self._servers(writer, kind, record, time_ns)

    def _robots(self, robot: str, kind: Any, record: Mapping[str, Any], time_ns: int) -> None:
        if kind == "tick" and record.get("command") is not None:
            self._commands[robot].ticks.append((time_ns, _packed(codec.value(record["command"]))))
        elif kind == "call" and record["do"] == "stop_command" and record.get("result") is not None:
            self._commands[robot].ticks.append((time_ns, _packed(codec.value(record["result"]))))
        elif kind == "call" and record["do"] == "reply" and "chunk_model" in (reply := record["args"]["reply"]):
            chunk = digest_of(codec.value(reply["chunk_model"]), codec.value(reply["chunk_robot"]))
            self._taken.say(_id(reply["id"]), chunk, self._here_ns(ROBOT + robot, time_ns))

    def _servers(self, writer: str, kind: Any, record: Mapping[str, Any], time_ns: int) -> None:
        here_ns = self._here_ns(writer, time_ns)
        if kind == REQUEST and "inputs" in record:
            images = frozenset((camera, image["sha256"]) for camera, image in record["images"].items())
            self._requests.say(_id(record["id"]), (record["inputs"], images, record["stamp_ns"]), here_ns)
        elif kind == REPLY and record["outcome"] == "answered":
            if "chunk" in record:
                self._replies.say(_id(record["id"]), record["chunk"], here_ns)
            elif not record.get("subgoals"):
                self._replies.say(_id(record["id"]), (record["verdict"], record["text"]), here_ns)

    def _here_ns(self, writer: str, time_ns: int) -> int:
        return time_ns + self._behind_ns.get(writer, 0)

    # --- the end ---

    def end(self, *, covered: bool, lost: Mapping[str, int]) -> tuple[list[Finding], list[str]]:
        """Return findings, and notes. covered: the recorder's digests say whether a message is as it came, so that one that no
        record has is somebody else's. lost: by topic, messages that the recorder counted as lost."""
        findings: dict[tuple[str, int], Finding] = {}
        for pairs in (self._replies, self._taken, self._requests):
            for one in pairs.differing():
                findings[one.topic, one.time_ns] = _finding(
                    Kind.DIFFERS, one, "the records of its sender or receiver have other contents"
                )
        notes = [
            f"{topic}: {count} messages cannot be read, and were not compared with records" for topic, count in self._unread.items()
        ]
        for robot, commands in sorted(self._commands.items()):
            self._end_commands(robot, commands, covered, findings, notes)
        if not covered:
            self._end_replies(lost, findings)
        return list(findings.values()), notes

    def _end_replies(self, lost: Mapping[str, int], findings: dict[tuple[str, int], Finding]) -> None:
        """Chunks that a robot has taken, or that nobody has."""
        missing: defaultdict[str, list[int]] = defaultdict(list)
        for key, (_, time_ns) in self._taken.said.items():
            topic = next((topic for topic in self._first_ns if topic.endswith(f"/{key.robot}/rfm/action_chunk")), "")
            if key not in self._taken.came and topic and self._first_ns[topic] < time_ns < self._ends_ns:
                missing[topic].append(time_ns)
        for topic, times in missing.items():
            for time_ns in sorted(times)[lost.get(topic, 0) :]:
                found = Finding(kind=Kind.REMOVED, topic=topic, type=CHUNK, time_ns=time_ns, problem="its robot took it")
                findings[topic, time_ns] = found
        for key, came in self._replies.came.items():
            if key in self._replies.said or key in self._taken.met:
                continue
            for one in (one for one in came if self._is_known(key.robot, one)):
                found = _finding(Kind.INSERTED, one, "no record of a server or its robot has it")
                findings.setdefault((one.topic, one.time_ns), found)

    def _is_known(self, robot: str, one: _Came) -> bool:
        """The robot's records cover that time."""
        at_ns = one.time_ns - self._behind_ns.get(ROBOT + robot, 0)
        return one.type == CHUNK and robot in self._commands and self._commands[robot].covers(at_ns)

    def _end_commands(
        self, robot: str, commands: _Commands, covered: bool, findings: dict[tuple[str, int], Finding], notes: list[str]
    ) -> None:
        ticks, topic = commands.ticks, f"commands of {robot}"
        behind_ns = self._behind_ns.get(ROBOT + robot, 0)
        ticks = sorted((time_ns + behind_ns, value) for time_ns, value in ticks)
        came, values = commands.came, {value for _, value in ticks}
        if not came or not ticks:
            if ticks:
                notes.append(
                    f"{topic}: none is in the recording on a topic `command` of numbers, and {len(ticks)} are in its records"
                )
            return
        if len(came) >= SCALED and not any(one.value in values for one in came):
            notes.append(f"{topic} are published in other units than its records have, and were not compared")
            return
        left, unmatched = _matched(ticks, came)
        unmatched = [one for one in unmatched if commands.covers(one.time_ns - behind_ns)]
        if unmatched and covered:
            notes.append(f"{topic}: {len(unmatched)} are in none of its control periods: somebody else published them")
        elif unmatched:
            _explain(left, values, unmatched, findings)
        if left:
            notes.append(f"{topic}: {len(left)} of {len(ticks)} did not come to the recorder: they travel best effort")


def _matched(ticks: list[tuple[int, bytes]], came: list[_Came]) -> tuple[list[tuple[int, bytes]], list[_Came]]:
    """Control periods without a command, and commands without a control period. ticks: by time.

    Each command takes the last period before it that has none yet: one that came late from before the records begin takes another's
    then, which shows at their beginning alone, where nothing is judged.
    """
    waiting: defaultdict[bytes, list[int]] = defaultdict(list)
    unmatched, place = [], 0
    for one in sorted(came, key=lambda one: one.time_ns):
        while place < len(ticks) and ticks[place][0] <= one.time_ns + EARLY_NS:
            waiting[ticks[place][1]].append(ticks[place][0])
            place += 1
        times = waiting[one.value]
        if times and times[-1] >= one.time_ns - LATE_NS:
            times.pop()
        else:
            unmatched.append(one)
    left = [(time_ns, value) for value, times in waiting.items() for time_ns in times]
    return sorted([*left, *ticks[place:]]), unmatched


def _explain(
    left: list[tuple[int, bytes]], known: Collection[bytes], unmatched: list[_Came], findings: dict[tuple[str, int], Finding]
) -> None:
    """What was done to commands of which the recorder kept no digests, as far as records tell. left: control periods without one.
    known: every command of the robot."""
    values = Counter(value for _, value in left)
    for one in unmatched:
        kind = Kind.CHANGED if one.value not in known else Kind.MOVED if values[one.value] > 0 else Kind.INSERTED
        values[one.value] -= 1
        findings[one.topic, one.time_ns] = _finding(kind, one, "no control period of its robot has it")


def _finding(kind: Kind, one: _Came, problem: str) -> Finding:
    return Finding(kind=kind, topic=one.topic, type=one.type, time_ns=one.time_ns, problem=problem)


def _id(found: Mapping[str, Any]) -> RequestId:
    """Raises: `KeyError` for what no record has."""
    return RequestId(**{name: found[name] for name in ID})


def _packed(values: Any) -> bytes:
    """As float32: what a command has in the records. The sum turns a minus zero into a zero."""
    return bytes((np.asarray(values, np.float32) + np.float32(0.0)).tobytes())


TAKES: Mapping[str, Callable[[Compared, Message], None]] = {
    CHUNK: Compared._chunk,
    JUDGEMENT: Compared._judgement,
    OBSERVATION: Compared._observation,
    ARRAY: Compared._command,
    TRAJECTORY: Compared._command,
}
