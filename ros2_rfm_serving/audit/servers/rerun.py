"""Repeated inference of a recording's batches, with its pages and observations in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ros2_rfm_serving.audit.bag import OBSERVATION, PAGE, Bag
from ros2_rfm_serving.audit.chain import records
from ros2_rfm_serving.audit.page_bytes import page_of
from ros2_rfm_serving.audit.replay import DAMAGED
from ros2_rfm_serving.audit.servers.engines import build, differences
from ros2_rfm_serving.audit.servers.infer import Inference, Inferred
from ros2_rfm_serving.audit.servers.observations import Observations, id_of, observation_of, tensor_of
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.types import Array

CHUNK = "rfm_serving/msg/ActionChunk"


class Rerun:
    """Repeated inference of all servers' chains. `results`: results so far."""

    def __init__(self, bag: Bag, models: Path | None = None, *, alone: bool = True) -> None:
        self._bag, self._models, self._alone = bag, models, alone
        self._engines: dict[bytes, Engine] = {}
        """Engines by description, shared by chains with the same one."""
        self._observations = Observations()
        self._chains: dict[tuple[str, int], Inference] = {}
        self._next: dict[tuple[str, int], int] = {}

    @property
    def results(self) -> list[Inferred]:
        """Return the results of chains with content."""
        results = [chain.result for chain in self._chains.values()]
        return [one for one in results if one.batches or one.skipped or one.unrecorded or one.notes]

    @property
    def num_batches(self) -> int:
        """Return the number of batches that have run so far, of all chains."""
        return sum(chain.result.batches for chain in self._chains.values())

    def run(self) -> Iterator[None]:
        """Process the recording, one message per step. Afterwards differences have a size, where the chunk itself was recorded."""
        for message in self._bag.messages(PAGE, OBSERVATION):
            if message.type == PAGE:
                self._page(message.data)
            else:
                self._observation(self._bag.read(message))
            yield
        self._measure()

    def _observation(self, message: Any) -> None:
        try:
            self._observations.add(observation_of(message))
        except (AttributeError, ValueError) as error:
            self._bag.damages[f"an observation cannot be read: {error}"] = None

    def _page(self, data: bytes) -> None:
        page = page_of(data)
        if page.writer.partition("/")[0] != "server":
            return
        key = page.writer, page.run
        if key not in self._chains:
            self._chains[key] = Inference(page.writer, self._engine, self._observations, alone=self._alone)
        chain = self._chains[key]
        if page.first != self._next.get(key, page.first):
            chain.gap()
        self._next[key] = page.first + len(page.lines)
        try:
            for record in records(page):
                self._say(chain.result, record)
                chain.feed(record)
        except (RfmError, *DAMAGED) as error:
            chain.result.say(f"a record cannot be read: {error}; see `rfm audit verify`")
            chain.gap()

    def _engine(self, begin: Mapping[str, Any]) -> Engine:
        """Return the engine for a chain, by its first record. Raises: `RfmError` when it cannot be built."""
        parts = begin["engine"], begin["contract"], begin["config"]["batch_size"]
        key = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
        if key not in self._engines:
            self._engines[key] = build(begin, self._models)
        return self._engines[key]

    def _say(self, result: Inferred, record: Mapping[str, Any]) -> None:
        if record.get("kind") == "begin" and record.get("engine"):
            for difference in differences(record["engine"]):
                result.say(difference)

    def _measure(self) -> None:
        """Measure the differences of today's chunks from those that robots received."""
        wanted = {request: (result, answer.chunk_model) for result in self.results for request, answer in result.different}
        for message in self._bag.messages(CHUNK) if wanted else ():
            chunk = self._bag.read(message)
            if found := wanted.get(id_of(chunk.id)):
                measure(*found, chunk.chunk_model)


def measure(result: Inferred, now: Array, sent: Any) -> None:
    """Measure the difference of today's chunk from the sent one, a `Tensor`; either may be empty."""
    try:
        then = tensor_of(sent)
    except ValueError as error:
        result.say(f"a chunk that was sent cannot be read: {error}")
        return
    if now.shape == then.shape:
        result.off = max(result.off, float(np.abs(now - then).max(initial=0.0)))
    else:
        result.say(f"a chunk of {then.shape} came out as {now.shape}" if now.size else "a row that had an answer has none here")
