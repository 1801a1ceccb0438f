"""Comparison of a recording's messages with the records of robots and servers: commands, observations, chunks, judgements.

A recorder's digests prove that a message is as the recorder received it; the records prove that it is what a process sent or
received. In a recording without digests they are the only evidence. Commands and observations travel best effort: a missing one is
not a finding but part of a note.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.bag import OBSERVATION, Message
from ros2_rfm_serving.audit.findings import Finding, Kind
from ros2_rfm_serving.audit.servers.observations import id_of, observation_of, tensor_of
from ros2_rfm_serving.audit.servers.reading import image_digests
from ros2_rfm_serving.audit.servers.records import REPLY, REQUEST, digest_of, inputs_of
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.types import RequestId

CHUNK, JUDGEMENT = "rfm_serving/msg/ActionChunk", "rfm_serving/msg/Judgement"
ARRAY, TRAJECTORY = "std_msgs/msg/Float64MultiArray", "trajectory_msgs/msg/JointTrajectory"
ROBOT, SERVER = "robot/", "server/"
LATE_NS, EARLY_NS = 2_000_000_000, 20_000_000
"""Largest delay of a command at the recorder after its control period, and largest advance, because clocks are estimated."""
SCALED, SURELY_SCALED = 5, 200
"""Numbers of commands without any match from which they are assumed to be published in other units than the records have."""
ID = ("robot", "component", "session_epoch", "episode", "sequence")
STAMP_AT, NAME_AT = 4, 12
"""Positions in an audit page in CDR: the stamp of its header, and the writer's name."""
KEPT_NS = 30_000_000_000
"""Time for which messages wait for the records that name them, and records for messages, which bounds the memory."""


class _Came(NamedTuple):
    topic: str
    type: str
    time_ns: int
    value: Any


@dataclass
class _Exchange:
    """One request, or one reply to it."""

    time_ns: int
    """Time of the first message or record about it, by the recorder's clock."""
    said: dict[str, Any] = field(default_factory=dict)
    """Kind of writer, server or robot -> contents by its records."""
    came: list[_Came] = field(default_factory=list)

    @property
    def differing(self) -> list[_Came]:
        """Return the message that differs from a writer's records, if there is one."""
        values = [one.value for one in self.came]
        return self.came[:1] if any(value not in values for value in self.said.values()) else []


class _Exchanges:
    """Open exchanges by request, for as long as one side may still report on them."""

    def __init__(self) -> None:
        self._open: dict[RequestId, _Exchange] = {}

    def of(self, key: RequestId, time_ns: int) -> _Exchange:
        return self._open.get(key) or self._open.setdefault(key, _Exchange(time_ns))

    def over(self, until_ns: int) -> Iterator[tuple[RequestId, _Exchange]]:
        """Yield and remove the exchanges that began before a time."""
        while self._open and (oldest := next(iter(self._open.items())))[1].time_ns < until_ns:
            del self._open[oldest[0]]
            yield oldest


class _Commands:
    """Commands of one robot: each is matched to the last unmatched control period before it.

    A late command from before the first record takes another one's period, which matters only at the beginning of the records,
    where nothing is judged.
    """

    def __init__(self, robot: str) -> None:
        self.robot = robot
        self.num_matched = self.num_periods = self.num_left = 0
        self.unmatched: list[tuple[Kind, _Came]] = []
        self.num_came = 0
        self.is_scaled = False
        self._came: deque[_Came] = deque()
        self._periods: deque[tuple[int, bytes]] = deque()
        """Control periods before their matching, by the recorder's clock."""
        self._waiting: defaultdict[bytes, list[int]] = defaultdict(list)
        self._recent: deque[tuple[int, bytes]] = deque()
        """Control periods of the last seconds, matched or not."""
        self._stretches: list[list[int]] = []
        """First and last time (ns) of the intervals without a missing record of the robot."""
        self._next = (0, 0)
        """Run and number of the next record of the interval."""

    def note(self, run: int, number: int, time_ns: int) -> None:
        """Add the time of a record."""
        if (run, number) != self._next or not self._stretches:
            self._stretches.append([time_ns, time_ns])
        self._stretches[-1][1] = max(self._stretches[-1][1], time_ns)
        self._next = run, number + 1

    def covers(self, time_ns: int) -> bool:
        """Return whether the control period of a command that came at this time must be recorded."""
        return any(begins_ns + LATE_NS <= time_ns <= ends_ns for begins_ns, ends_ns in reversed(self._stretches))

    def period(self, time_ns: int, value: bytes) -> None:
        self.num_periods += 1
        self._periods.append((time_ns, value))

    def come(self, one: _Came) -> None:
        self.num_came += 1
        self._came.append(one)

    def settle(self, until_ns: int) -> None:
        """Judge the commands up to a time, after all their control periods were added."""
        while self._came and self._came[0].time_ns <= until_ns:
            self._judge(self._came.popleft())

    def end(self) -> None:
        self.settle(self._came[-1].time_ns if self._came else 0)
        self.num_left += sum(map(len, self._waiting.values())) + len(self._periods)

    def _judge(self, one: _Came) -> None:
        while self._periods and self._periods[0][0] <= one.time_ns + EARLY_NS:
            time_ns, value = self._periods.popleft()
            self._waiting[value].append(time_ns)
            self._recent.append((time_ns, value))
        self._forget(one.time_ns - 2 * LATE_NS)
        times = self._waiting.get(one.value, [])
        if times and times[-1] >= one.time_ns - LATE_NS:
            times.pop()
            self.num_matched += 1
        elif not self.is_scaled and self.covers(one.time_ns):
            known = any(value == one.value for _, value in self._recent)
            self.unmatched.append((Kind.INSERTED if known else Kind.CHANGED, one))
            self.is_scaled = not self.num_matched and len(self.unmatched) >= SURELY_SCALED

    def _forget(self, before_ns: int) -> None:
        while self._recent and self._recent[0][0] < before_ns:
            time_ns, value = self._recent.popleft()
            times = self._waiting[value]
            if times and times[0] <= time_ns:
                del times[0]
                self.num_left += 1
            if not times:
                del self._waiting[value]


class Compared:
    """Comparison: `heard` for all pages first; then `came` for each message and `record` for each record, in their order; `end`."""

    def __init__(self, read: Callable[[Message], Any]) -> None:
        """Begin a comparison. read: returns an object with a message's fields, or raises `RfmError`."""
        self._read = read
        self.covered = False
        """True if the recorder's digests cover the messages, so that one without a record comes from another process."""
        self._answers, self._requests = _Exchanges(), _Exchanges()
        self._commands: dict[str, _Commands] = {}
        self._stamps: dict[tuple[str, int], float] = {}
        """Chain -> ROS time at t = 0 by its writer's clock, s."""
        self._behind_ns: dict[str, int] = {}
        """Writer -> lag of its clock behind the recorder's, plus the delay of the quickest page."""
        self._first_ns: dict[str, int] = {}
        """Topic -> time of its first message."""
        self._ends_ns = 0
        self._unread: Counter[str] = Counter()
        self._findings: dict[tuple[str, int], Finding] = {}
        self._missing: defaultdict[str, list[int]] = defaultdict(list)
        """Topic -> times of accepted chunks that are missing."""

    # --- messages ---

    def heard(self, data: bytes, time_ns: int) -> None:
        """Update the lag of a writer's clock, by bytes and time of an audit page."""
        try:
            seconds, nanoseconds, size = struct.unpack_from("<iII", data, STAMP_AT)
        except struct.error:
            return
        writer = data[NAME_AT + 4 : NAME_AT + 3 + size].decode(errors="replace")
        behind_ns = time_ns - (seconds * 1_000_000_000 + nanoseconds)
        self._behind_ns[writer] = min(behind_ns, self._behind_ns.get(writer, behind_ns))

    def came(self, message: Message) -> None:
        """Add a message. Unreadable messages are counted for a note."""
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
        self._come(self._answers, id_of(read.id), message, value)

    def _judgement(self, message: Message) -> None:
        read = self._read(message)
        self._come(self._answers, id_of(read.id), message, (str(read.verdict), str(read.text)))

    def _observation(self, message: Message) -> None:
        observation = observation_of(self._read(message))
        images = frozenset((image.camera, codec.digest(image.data)) for image in observation.images)
        self._come(self._requests, observation.id, message, (inputs_of(observation), images, observation.stamp_ns))

    def _come(self, exchanges: _Exchanges, key: RequestId, message: Message, value: Any) -> None:
        one = _Came(message.topic, message.type, message.time_ns, value)
        exchanges.of(key, message.time_ns).came.append(one)
        self._close_until(message.time_ns - KEPT_NS)

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
        self._of(robot.rpartition("/")[2]).come(_Came(message.topic, message.type, message.time_ns, _packed(values)))

    def _of(self, robot: str) -> _Commands:
        return self._commands.get(robot) or self._commands.setdefault(robot, _Commands(robot))

    # --- records ---

    def record(self, writer: str, run: int, record: Mapping[str, Any]) -> None:
        """Add a record. Raises: `RfmError`, or one of `verify_bag.BROKEN` for malformed content."""
        kind, now_s = record.get("kind"), float(record["t"])
        if "stamp" in record:
            self._stamps[writer, run] = float(record["stamp"]) - now_s
        if (writer, run) not in self._stamps:  # its beginning is missing, and its clock is unknown until the next seal
            return
        time_ns = int((self._stamps[writer, run] + now_s) * 1e9) + self._behind_ns.get(writer, 0)
        if writer.startswith(ROBOT):
            self._robots(self._of(writer.removeprefix(ROBOT)), run, kind, record, time_ns)
        elif writer.startswith(SERVER):
            self._servers(kind, record, time_ns)

    def _robots(self, robot: _Commands, run: int, kind: Any, record: Mapping[str, Any], time_ns: int) -> None:
        robot.note(run, int(record["n"]), time_ns)
        if kind == "tick" and record.get("command") is not None:
            robot.period(time_ns, _packed(codec.value(record["command"])))
        elif kind == "event" and record["event"]["~"] == "StopRequested" and record.get("result") is not None:
            robot.period(time_ns, _packed(codec.value(record["result"])))
        elif kind == "event" and record["event"]["~"] == "ReplyReceived" and "chunk_model" in (reply := record["event"]["reply"]):
            chunk = digest_of(codec.value(reply["chunk_model"]), codec.value(reply["chunk_robot"]))
            self._answers.of(_id(reply["id"]), time_ns).said[ROBOT] = chunk
        robot.settle(time_ns - EARLY_NS)

    def _servers(self, kind: Any, record: Mapping[str, Any], time_ns: int) -> None:
        if kind == REQUEST and "inputs_digest" in record:
            observation = record["event"]["observation"]
            images = frozenset(image_digests(observation).items())
            said = record["inputs_digest"], images, observation["stamp_ns"]
            self._requests.of(_id(observation["id"]), time_ns).said[SERVER] = said
        elif kind == REPLY and record.get("result") is not None:
            answer = record["event"]["answer"]
            if "chunk_digest" in record:
                self._answers.of(_id(record["request"]), time_ns).said[SERVER] = record["chunk_digest"]
            elif not record["result"].get("subgoals"):
                self._answers.of(_id(record["request"]), time_ns).said[SERVER] = answer["verdict"], answer["text"]

    # --- the end ---

    def _close_until(self, until_ns: int) -> None:
        for _, exchange in self._requests.over(until_ns):
            self._differ(exchange)
        for key, exchange in self._answers.over(until_ns):
            self._differ(exchange)
            if not self.covered:
                self._close_answer(key, exchange)

    def _differ(self, exchange: _Exchange) -> None:
        for one in exchange.differing:
            self._find(Kind.DIFFERS, one, "the records of its sender or receiver have other contents")

    def _close_answer(self, key: RequestId, exchange: _Exchange) -> None:
        """Find a chunk that the robot accepted and that is missing, or one without a sender, where the recorder kept no digests."""
        topic = next((topic for topic in self._first_ns if topic.endswith(f"/{key.robot}/rfm/action_chunk")), "")
        if ROBOT in exchange.said and not exchange.came and topic and self._first_ns[topic] < exchange.time_ns < self._ends_ns:
            self._missing[topic].append(exchange.time_ns)
        for one in exchange.came if not exchange.said else ():
            if one.type == CHUNK and key.robot in self._commands and self._commands[key.robot].covers(one.time_ns):
                self._find(Kind.INSERTED, one, "no record of a server or its robot has it")

    def _find(self, kind: Kind, one: _Came, problem: str) -> None:
        found = Finding(kind=kind, topic=one.topic, type=one.type, time_ns=one.time_ns, problem=problem)
        self._findings.setdefault((one.topic, one.time_ns), found)

    def end(self, lost: Mapping[str, int]) -> tuple[list[Finding], list[str]]:
        """Return findings, and notes. lost: number of messages by topic that the recorder counted as lost."""
        self._close_until(NEVER_NS)
        notes = [
            f"{topic}: {count} messages cannot be read, and were not compared with records" for topic, count in self._unread.items()
        ]
        for commands in self._commands.values():
            commands.end()
            notes += self._end_commands(commands, f"commands of {commands.robot}")
        for topic, times in self._missing.items():
            for time_ns in sorted(times)[max(0, lost.get(topic, 0)) :]:
                found = Finding(kind=Kind.REMOVED, topic=topic, type=CHUNK, time_ns=time_ns, problem="its robot took it")
                self._findings.setdefault((topic, time_ns), found)
        return list(self._findings.values()), notes

    def _end_commands(self, commands: _Commands, what: str) -> Iterator[str]:
        if not commands.num_periods:
            return
        if not commands.num_came:
            yield f"{what}: none is in the recording on a topic `command` of numbers, and {commands.num_periods} are in its records"
            return
        if not commands.num_matched and len(commands.unmatched) >= SCALED:
            yield f"{what} are published in other units than its records have, and were not compared"
            return
        if commands.unmatched and self.covered:
            count = len(commands.unmatched)
            yield f"{what}: {count} are in none of its control periods: somebody else published them, or a clock was set meanwhile"
        for kind, one in commands.unmatched if not self.covered else ():
            self._find(kind, one, "no control period of its robot has it")
        if commands.num_left:
            yield f"{what}: {commands.num_left} of {commands.num_periods} did not come to the recorder: they travel best effort"


def _id(found: Mapping[str, Any]) -> RequestId:
    """Return the request's key. Raises: `KeyError` for an incomplete one."""
    return RequestId(**{name: found[name] for name in ID})


def _packed(values: Any) -> bytes:
    """Return values as float32, the type of recorded commands. The sum turns a minus zero into a zero."""
    return bytes((np.asarray(values, np.float32) + np.float32(0.0)).tobytes())


NEVER_NS = 1 << 80
TAKES: Mapping[str, Callable[[Compared, Message], None]] = {
    CHUNK: Compared._chunk,
    JUDGEMENT: Compared._judgement,
    OBSERVATION: Compared._observation,
    ARRAY: Compared._command,
    TRAJECTORY: Compared._command,
}
