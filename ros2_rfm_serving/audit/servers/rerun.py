"""The batches of a recording, run again: pages and observations as they lie in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ros2_rfm_serving.audit.bag import OBSERVATION, PAGE, Bag
from ros2_rfm_serving.audit.chain import records
from ros2_rfm_serving.audit.page_bytes import page_of
from ros2_rfm_serving.audit.servers.engines import build, differences
from ros2_rfm_serving.audit.servers.infer import Inference, Inferred
from ros2_rfm_serving.audit.servers.observations import Observations, id_of, observation_of, tensor_of
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.types import RequestId

CHUNK = "rfm_serving/msg/ActionChunk"


class Rerun:
    """Every server's chains. `results`: as far as it has come."""

    def __init__(self, bag: Bag, models: Path | None = None, *, alone: bool = True) -> None:
        self._bag, self._make, self._alone = bag, partial(build, models=models), alone
        self._observations = Observations()
        self._chains: dict[tuple[str, int], Inference] = {}
        self._next: dict[tuple[str, int], int] = {}

    @property
    def results(self) -> list[Inferred]:
        return [chain.result for chain in self._chains.values()]

    def run(self) -> Iterator[None]:
        """A step per message. Afterwards every difference has a size, where the chunk itself was recorded."""
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
            self._chains[key] = Inference(page.writer, self._make, self._observations, alone=self._alone)
        chain = self._chains[key]
        if page.first != self._next.get(key, page.first):
            chain.gap()
        for record in records(page):
            self._say(chain.result, record)
            chain.feed(record)
            self._next[key] = page.first + len(page.lines)

    def _say(self, result: Inferred, record: Mapping[str, Any]) -> None:
        if record.get("kind") == "begin":
            for difference in differences((record.get("made_of") or {}).get("engine") or {}):
                result.say(difference)

    def _measure(self) -> None:
        """How far today's chunks are from those that robots got."""
        wanted: dict[RequestId, Callable[[Any], None]] = {}
        for result in self.results:
            for request, answer in result.different:
                wanted[request] = partial(_measure, result, answer.chunk_model)
        for message in self._bag.messages(CHUNK) if wanted else ():
            chunk = self._bag.read(message)
            if (measure := wanted.get(id_of(chunk.id))) is not None:
                measure(tensor_of(chunk.chunk_model))


def _measure(result: Inferred, now: Any, then: Any) -> None:
    if now.shape != then.shape:
        raise RfmError(f"{result.writer}: a chunk of shape {now.shape} in place of {then.shape}")
    result.off = max(result.off, float(np.abs(now - then).max(initial=0.0)))
