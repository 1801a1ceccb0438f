"""A flight recorder: the last seconds in memory; what led to an incident is written with what follows, to a folder of its own."""

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
    """The last messages, by time and by bytes."""

    def __init__(self, seconds: float, limit_bytes: int) -> None:
        self._span_s, self._limit = seconds, limit_bytes
        self._kept: deque[tuple[float, Sample]] = deque()
        """When each was heard, by the monotonic clock: the other one may be set while it lies here."""
        self._latched: dict[str, Sample] = {}
        self.size = 0

    def keep(self, samples: list[Sample], now_s: float) -> None:
        self._kept.extend((now_s, sample) for sample in samples)
        self.size += sum(sample.size for sample in samples)
        while self._kept and (self.size > self._limit or now_s - self._kept[0][0] > self._span_s):
            self._forget(self._kept.popleft()[1])

    def take(self) -> list[Sample]:
        """What was said once for all who come later is in it, however old it is."""
        taken, self._kept, self.size = [*self._latched.values(), *(sample for _, sample in self._kept)], deque(), 0
        return taken

    def _forget(self, sample: Sample) -> None:
        self.size -= sample.size
        if sample.topic.latched:
            self._latched[sample.topic.name] = sample

    def span_s(self, now_s: float) -> float:
        return now_s - self._kept[0][0] if self._kept else 0.0


Begin = Callable[[Path, Limits, dict[str, Any]], Recorder]
"""A recording of its own: folder, limits, what stands in its first record beside the rest. Raises: `RfmError`."""


class Flight:
    """A sink. `ask` may be called from other threads."""

    def __init__(self, folder: Path, bounds: FlightLimits, limits: Limits, begin: Begin) -> None:
        """limits: splits within an incident; what is kept counts for all incidents together. Raises: `RfmError`: no such folder."""
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
        """All incidents that are over."""
        self.told = self._done

    def ask(self) -> None:
        """A person wants what just happened."""
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
        """An incident that goes on ends; what is only in memory is forgotten."""
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
                self._incidents.open = None  # the next cause tries again, with the last seconds then
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
        except OSError as error:  # the next one tries again
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
                except RfmError:  # a message that is none is recorded as it came; it tells nothing
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
