"""Flight recorder: it keeps the last seconds in memory, and writes them with what follows an incident to a folder of its own."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ros2_rfm_serving.audit.chain import records
from ros2_rfm_serving.audit.message_types import MessageTypes
from ros2_rfm_serving.audit.page_bytes import page_of
from ros2_rfm_serving.audit.recording.incident_folders import folder_name, prune
from ros2_rfm_serving.audit.recording.incidents import AUDIT, GOALS, LISTENED, ROBOT, SERVER, Cause, Incidents, Watch
from ros2_rfm_serving.audit.recording.intake import Sample
from ros2_rfm_serving.audit.recording.recorder import Limits, Recorder
from ros2_rfm_serving.audit.recording.told import Told
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.private_files import private_folder


@dataclass(frozen=True, kw_only=True)
class FlightLimits:
    before_s: float
    after_s: float
    memory_bytes: int
    per_hour: int


class Memory:
    """Rolling buffer of the last messages, bounded in time and bytes."""

    def __init__(self, seconds: float, limit_bytes: int) -> None:
        self._span_s, self._limit = seconds, limit_bytes
        self._kept: deque[tuple[float, Sample]] = deque()
        """Messages with the monotonic time of their reception, because the other clock may be set meanwhile."""
        self._latched: dict[str, Sample] = {}
        self.size = 0

    def keep(self, samples: list[Sample], now_s: float) -> None:
        self._kept.extend((now_s, sample) for sample in samples)
        self.size += sum(sample.size for sample in samples)
        while self._kept and (self.size > self._limit or now_s - self._kept[0][0] > self._span_s):
            self._forget(self._kept.popleft()[1])

    def take(self) -> list[Sample]:
        """Return and remove all messages. The last latched message of each topic is included, however old it is."""
        taken, self._kept, self.size = [*self._latched.values(), *(sample for _, sample in self._kept)], deque(), 0
        return taken

    def _forget(self, sample: Sample) -> None:
        self.size -= sample.size
        if sample.topic.latched:
            self._latched[sample.topic.name] = sample

    def span_s(self, now_s: float) -> float:
        return now_s - self._kept[0][0] if self._kept else 0.0


Begin = Callable[[Path, Limits, dict[str, Any]], Recorder]
"""Factory of recordings: folder, limits, and further keys of the first record. Raises: `RfmError` when it cannot begin."""


class Flight:
    """Sink that records incidents; other threads may call `ask`."""

    def __init__(self, folder: Path, bounds: FlightLimits, limits: Limits, begin: Begin) -> None:
        """Create the folder. limits: splits within an incident; the bounds on kept data apply to all incidents together. Raises:
        `RfmError` when the folder cannot be used."""
        try:
            private_folder(folder)
        except OSError as error:
            raise RfmError(f"{folder}: no folder for recordings: {error.strerror or error}") from None
        self._folder, self._begin = folder, begin
        self._keep_bytes, self._keep_s = limits.keep_bytes, limits.keep_s
        self._limits = dataclasses.replace(limits, keep_bytes=0, keep_s=0.0)
        self._memory = Memory(bounds.before_s, bounds.memory_bytes)
        self._watch, self._types = Watch(), MessageTypes()
        self._incidents = Incidents(after_s=bounds.after_s, per_hour=bounds.per_hour)
        self._recorder: Recorder | None = None
        self._asked = threading.Event()
        self._done = Told(folder=folder)
        """Totals of the incidents that are over."""
        self.told = self._done

    def ask(self) -> None:
        """Request a recording of the last seconds, on behalf of an operator."""
        self._asked.set()

    def work(self, samples: list[Sample], overflowed: Mapping[str, int], now_s: float, now_ns: int) -> None:
        causes = [*self._causes(samples, now_s), *self._watch.quiet(now_s)]
        if self._asked.is_set():
            self._asked.clear()
            causes.append(Cause("person", "", "asked for it"))
        if self._recorder is None:
            self._memory.keep(samples, now_s)
            samples = []
        for cause in causes:
            self._happened(cause, now_s, now_ns)
        if self._recorder is not None:
            self._recorder.work(samples, overflowed, now_s, now_ns)
            if self._incidents.over(now_s):
                self._end(now_s, now_ns)
        self._tell(overflowed, now_s)

    def close(self, now_s: float, now_ns: int) -> Told:
        """End an ongoing incident and discard the messages in memory."""
        if self._recorder is not None:
            self._end(now_s, now_ns)
        self._tell({}, now_s)
        return self.told

    def _happened(self, cause: Cause, now_s: float, now_ns: int) -> None:
        if self._incidents.add(cause, now_s) is not None and self._recorder is None:
            folder = self._folder / folder_name(cause, now_ns / 1e9)
            about = {"cause": cause._asdict()}
            try:
                self._recorder = self._begin(folder, self._limits, about)
            except RfmError as error:
                self._incidents.open = None  # the next cause retries, with the last seconds of that time
                self._done = dataclasses.replace(self._done, problem=str(error))
                return
            self._recorder.work(self._memory.take(), {}, now_s, now_ns)
        elif self._recorder is not None:
            self._recorder.note("cause", now_s, {"cause": cause._asdict()})

    def _end(self, now_s: float, now_ns: int) -> None:
        assert self._recorder is not None
        self._incidents.open = None
        one, self._recorder = self._recorder.close(now_s, now_ns), None
        self._done = _sum(self._done, one, problem="")
        try:
            prune(self._folder, self._keep_bytes, self._keep_s, now_ns / 1e9)
        except OSError as error:  # the next incident retries
            self._done = dataclasses.replace(self._done, problem=error.strerror or str(error))

    def _tell(self, overflowed: Mapping[str, int], now_s: float) -> None:
        if self._recorder is None:
            lost = dict(Counter(self._done.lost) + Counter(overflowed))
            self._done = dataclasses.replace(self._done, lost=lost)
            self.told = dataclasses.replace(self._done, held_s=self._memory.span_s(now_s))
        else:
            now = self._recorder.told
            self.told = _sum(self._done, now, problem=now.problem)

    def _causes(self, samples: list[Sample], now_s: float) -> Iterator[Cause]:
        for sample in samples:
            if sample.topic.type in LISTENED:
                try:
                    yield from self._look(sample, now_s)
                except RfmError:  # a malformed message is recorded as it came, and has no cause
                    continue

    def _look(self, sample: Sample, now_s: float) -> Iterator[Cause]:
        kind, topic = sample.topic.type, sample.topic.name
        if kind == AUDIT:
            page = page_of(sample.data)
            yield from self._watch.records(page.writer, records(page))
            return
        self._types.add(kind, sample.topic.definition)
        read = self._types.read(kind, sample.data)
        if kind == ROBOT:
            yield from self._watch.robot(read, now_s)
        elif kind == SERVER:
            yield from self._watch.server(read, now_s)
        elif kind == GOALS:
            yield from self._watch.goals(topic, read)


def _sum(done: Told, one: Told, *, problem: str) -> Told:
    return dataclasses.replace(
        done,
        topics=max(done.topics, one.topics),
        messages=done.messages + one.messages,
        size=done.size + one.size,
        files=done.files + one.files,
        lost=dict(Counter(done.lost) + Counter(one.lost)),
        broken={**done.broken, **one.broken},
        incidents=done.incidents + 1,
        problem=problem,
    )
