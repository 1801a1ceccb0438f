"""Repeated inference of recorded batches on the same engine, with their composition, order and padding.

Noise is drawn from a request's identity, so the same software on the same hardware computes the same bytes. A recording has the
digest of each reply; the difference to today's reply is known only where the chunk itself was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.chain import format_problem
from ros2_rfm_serving.audit.servers.engines import elsewhere
from ros2_rfm_serving.audit.servers.observations import Observations
from ros2_rfm_serving.audit.servers.reading import image_digests
from ros2_rfm_serving.audit.servers.records import BATCH, EVENT, REPLY, REQUEST, digest_of, inputs_of
from ros2_rfm_serving.audit.servers.replay import ServerReplay
from ros2_rfm_serving.audit.servers.rows import Rows
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server import RunningBatch
from ros2_rfm_serving.server.engine_runner import EngineRunner
from ros2_rfm_serving.server.intake import readying
from ros2_rfm_serving.server.step_engine_runner import StepEngineRunner, runner_of
from ros2_rfm_serving.types import EngineReply, InferenceRequest, ObservationRequest, RequestId

MOST_TOLD = 8
ALONE_LIMIT = 1e-5
"""Largest permitted difference of a row that runs alone from the same row in its batch, model space."""
NUM_DRAWS = 8
"""Number of draws of last bits for a row with a larger difference."""


@dataclass
class Inferred:
    """Result of the repeated inference of one chain's batches."""

    writer: str
    batches: int = 0
    """Number of batches that ran again."""
    rows: int = 0
    """Number of their rows that had a reply in the recording."""
    same: int = 0
    """Number of rows with the same bytes."""
    alone: float = 0.0
    """Largest difference of a row that ran alone from the same row in its batch, model space, without those `on_edge`."""
    on_edge: int = 0
    """Number of rows whose difference alone is larger than permitted, and no larger than the effect of their state's last bit:
    where a model decides between two motions, any rounding is amplified, of its inputs as of its sums."""
    off: float = 0.0
    """Largest difference of a row with other bytes from the chunk that its robot received, model space; 0 if unknown."""
    unrecorded: int = 0
    """Number of batches with an observation that is not in the recording, because it came another way or was lost."""
    skipped: int = 0
    """Number of batches that cannot run here, because their engine is elsewhere or no snapshot precedes them."""
    notes: list[str] = field(default_factory=list)
    different: list[tuple[RequestId, EngineReply]] = field(default_factory=list)
    """First rows with other bytes, and their replies now."""

    def say(self, note: str) -> None:
        if note not in self.notes and len(self.notes) < MOST_TOLD:
            self.notes.append(note)


class Inference:
    """Repeated inference of one chain of a server, record by record, with the observations between its pages."""

    def __init__(
        self,
        writer: str,
        make: Callable[[Mapping[str, Any]], Engine],
        observations: Observations,
        *,
        alone: bool = True,
    ) -> None:
        """Prepare the inference. make: returns the engine for a chain's first record, or raises `RfmError`. observations: at least
        those before the page. alone: each row also runs by itself."""
        self.result = Inferred(writer)
        self._observations = observations
        self._make, self._alone = make, alone
        self._replay: ServerReplay | None = None
        self._running: EngineRunner | None = None
        self._given: dict[RequestId, Mapping[str, Any]] = {}
        """Records of waiting requests."""
        self._batches: dict[int, tuple[RunningBatch, list[InferenceRequest]]] = {}
        self._replies: dict[int, list[Mapping[str, Any]]] = {}
        self._rows: Rows | None = None
        """State of step-by-step rows; None while whole batches run."""

    def feed(self, record: Mapping[str, Any]) -> None:
        kind = record.get("kind")
        if problem := format_problem(record):
            self.result.say(problem)
            self.gap()
        elif kind == "begin":
            self._begin(record)
        elif kind == "snapshot":
            self._restore(record)
        elif self._replay is None:
            self.result.skipped += kind == BATCH and record.get("result") is not None
        else:
            self._decided(record, self._replay)

    def gap(self) -> None:
        """Discard the state at a gap in the records; the next snapshot restores it."""
        self._replay = None
        self._batches, self._replies = {}, {}
        if self._rows is not None:
            self._rows.end()
        self._rows = None

    # --- parts ---

    def _begin(self, record: Mapping[str, Any]) -> None:
        self._running = None
        self.gap()
        if record.get("config") is None:  # no model was loaded
            return
        try:
            if why := elsewhere(record):
                raise RfmError(why)
            engine = self._make(record)
        except RfmError as error:
            self.result.say(str(error))
        else:
            self._running = runner_of(engine, lambda kind, problem: self.result.say(f"{kind}: {problem}"))

    def _restore(self, record: Mapping[str, Any]) -> None:
        if self._replay is None:
            replay = ServerReplay()
            try:
                replay.restore(record)
            except Exception as error:  # of any constructor, for contents that no version wrote
                self.result.say(f"record {record.get('n')}, a snapshot, cannot be restored: {error}")
            else:
                self._replay = replay
                self._rows_of(replay, in_flight=True)

    def _decided(self, record: Mapping[str, Any], replay: ServerReplay) -> None:
        try:
            replay.feed(record)
        except Exception as error:  # `rfm replay` describes it in detail
            self.result.say(f"record {record.get('n')} cannot be replayed: {error}")
            self.gap()
            return
        kind = record.get("kind")
        if kind == REQUEST and "inputs_digest" in record and "raised" not in record:
            self._given[codec.value(record["event"]["request"]["id"])] = record
        elif kind == BATCH and record["result"] is not None:
            self._begun(replay.work(record["result"]["batch"]), replay)
        elif kind == EVENT and self._rows is not None:
            self._stepped(record, self._rows)
        elif kind == REPLY and record["event"]["batch"] in self._batches:
            self._replied(record)

    def _rows_of(self, replay: ServerReplay, *, in_flight: bool) -> None:
        """Update whether rows go on one by one. in_flight: their present rows began before the first known record."""
        flight = replay.core.queues[0].view.in_flight if replay.core is not None else None
        if flight is None or not isinstance(self._running, StepEngineRunner):
            self._rows = None
        elif self._rows is None:
            self._rows = Rows(self._running, list(flight.rows) if in_flight else [])

    def _stepped(self, record: Mapping[str, Any], rows: Rows) -> None:
        event = record["event"]
        if event["~"] == "BatchesPerceived":
            rows.entered([number for number, _ in event["num_steps"]])
        elif event["~"] == "SolverStepPolled":
            step = record["result"]
            rows.turn(step["advance"], step["leave"])
            for number in step["leave"]:
                self._batches.pop(number, None)

    def _begun(self, work: RunningBatch, replay: ServerReplay) -> None:
        if not work.queue_index:
            self._rows_of(replay, in_flight=False)
        rows = [self._row(waiting.request) for waiting in work.batch]
        known = [row for row in rows if row is not None]
        if self._running is None or work.queue_index:
            self.result.skipped += 1
        elif self._rows is not None and not work.whole:
            self._rows.begun(work.number, rows[0])
            self._batches[work.number] = work, known
        elif len(known) < len(rows):
            self.result.unrecorded += 1
        else:
            self._batches[work.number] = work, known

    def _row(self, request: InferenceRequest) -> InferenceRequest | None:
        """Return a request as the engine received it; None if its observation is not in the recording."""
        given, observation = self._given.pop(request.id, None), self._observations.take(request.id)
        if given is None or observation is None or not _is(observation, given) or self._running is None:
            return None
        engine = self._running.engine
        ready = readying(engine.contract, engine.takes_encoded, engine.fit_image, engine.decode_image)
        return replace(
            request,
            state=observation.state,
            images={image.camera: ready(image) for image in observation.images},
            prefix_model=observation.prefix_model,
            prefix_robot=observation.prefix_robot,
        )

    def _replied(self, record: Mapping[str, Any]) -> None:
        work, rows = self._batches[record["event"]["batch"]]
        replies = self._replies.setdefault(work.number, [])
        replies.append(record)
        if len(replies) == len(work.batch):
            del self._batches[work.number], self._replies[work.number]
            self._end(work, rows, replies)

    def _end(self, work: RunningBatch, rows: Sequence[InferenceRequest], replies: Sequence[Mapping[str, Any]]) -> None:
        assert self._running is not None
        if self._rows is None or work.whole:
            self._compare(rows, self._running.run(rows, 0), replies)
        elif (answered := self._rows.answered(work.number)) is None:
            self.result.unrecorded += 1
        else:
            self._compare([answered[0]], [answered[1]], replies)

    def _compare(
        self, rows: Sequence[InferenceRequest], answers: Sequence[EngineReply | None], replies: Sequence[Mapping[str, Any]]
    ) -> None:
        assert self._running is not None
        self.result.batches += 1
        for row, answer, reply in zip(rows, answers, replies, strict=True):
            if reply.get("result") is None:
                continue
            self.result.rows += 1
            if answer is not None and said(answer) == recorded(reply):
                self.result.same += 1
            elif len(self.result.different) < MOST_TOLD:
                self.result.different.append((row.id, answer or EngineReply()))
            if self._alone and reply["result"]["served"]["batch_size"] > 1 and answer is not None and answer.chunk_model.size:
                self._compare_alone(row, answer, self._running)

    def _compare_alone(self, row: InferenceRequest, answer: EngineReply, running: EngineRunner) -> None:
        (alone,) = running.run([row], 0)
        error = _apart(alone, answer)
        if alone is None or error <= ALONE_LIMIT or error > (edge := _last_bit(row, alone, running)):
            self.result.alone = max(self.result.alone, error)
            return
        self.result.on_edge += 1
        told = f"alone off by {error:.2g}, and by {edge:.2g} when the last bit of its state is another one"
        self.result.say(f"{row.id.robot}/{row.id.component}, episode {row.id.episode}, sequence {row.id.sequence}: {told}")


def _apart(one: EngineReply | None, other: EngineReply) -> float:
    return float("inf") if one is None else float(np.abs(one.chunk_model - other.chunk_model).max())


def _last_bit(row: InferenceRequest, alone: EngineReply, running: EngineRunner) -> float:
    """Return the effect of the state's last bits, each moved up or down by a draw, on a row that runs alone."""
    ups = np.random.default_rng(0).choice(np.asarray([-np.inf, np.inf], np.float32), (NUM_DRAWS, *row.state.shape))
    replies = [running.run([replace(row, state=np.nextafter(row.state, up))], 0)[0] for up in ups]
    return max((_apart(reply, alone) for reply in replies if reply is not None), default=0.0)


def said(answer: EngineReply) -> Any:
    """Return the recorded form of a reply."""
    if answer.chunk_robot.size or not (answer.text or answer.verdict):
        return digest_of(answer.chunk_model, answer.chunk_robot)
    return answer.verdict, answer.text


def recorded(reply: Mapping[str, Any]) -> Any:
    if "chunk_digest" in reply:
        return reply["chunk_digest"]
    answer = reply["event"]["answer"]
    return answer["verdict"], answer["text"]


def _is(observation: ObservationRequest, given: Mapping[str, Any]) -> bool:
    """Return whether an observation is the one that the server recorded."""
    pictures = {image.camera: codec.digest(image.data) for image in observation.images}
    return inputs_of(observation) == given["inputs_digest"] and pictures == image_digests(given["event"]["observation"])
