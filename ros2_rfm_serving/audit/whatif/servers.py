"""Conversion of a server's journal into a case."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.whatif.case import Batch, Outage, ServerCase
from ros2_rfm_serving.audit.whatif.chains import Chain, Record, first
from ros2_rfm_serving.audit.whatif.robots import Key
from ros2_rfm_serving.dispatch import CONTINUOUS
from ros2_rfm_serving.server import ServerConfig
from ros2_rfm_serving.types import ModelContract, OutputKind, Placement

SILENT_S = 2.0
"""Time without a status `READY` after which a server counts as out of order; its status is due every 0.5 s."""
STATUS_S = 0.5
MOST_ROWS = 256
"""Largest number of rows in flight at once."""


@dataclass
class ServerRead:
    """Reader of one server's journal, chain by chain."""

    config: ServerConfig
    contract: ModelContract
    batches: list[Batch] = field(default_factory=list)
    overflowed: int = 0
    """Number of batches that ran on an overflow tier, of which nothing else is kept."""
    reconfigured: bool = False
    """True if its parameters changed while it served."""
    arrived: set[Key] = field(default_factory=set)
    intakes_s: list[float] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    """Times from the end of a batch to the begin of the next one, where that was already waiting."""
    _given: ServerConfig | None = None
    """Configuration in its first record."""
    _running: dict[int, tuple[Record, int]] = field(default_factory=dict)
    """Batch -> record of its begin, and its size as in `Batch.padded`."""
    _deposited_s: dict[Key, float] = field(default_factory=dict)
    _ended_s: float = -math.inf

    def read(self, chain: Chain) -> None:
        self._running.clear()
        self._ended_s = -math.inf
        for _, record in chain.of("request", "batch", "event"):
            name = record["event"]["~"]
            if record["kind"] == "request":
                self._request(record)
            elif record["kind"] == "batch":
                self._begun(record)
            elif name == "ServerConfigurationChanged":
                self.reconfigured |= self._is_another(codec.value(record["event"]["config"]))
            elif name == "BatchEnded":
                self._ended(record, chain)

    def case(self, placement: Placement, outages: Sequence[Outage]) -> ServerCase:
        return ServerCase(
            placement=placement,
            config=self.config,
            contract=self.contract,
            batches=tuple(self.batches),
            intake_s=float(np.median(self.intakes_s)) if self.intakes_s else 0.0,
            pause_s=float(np.median(self.pauses_s)) if self.pauses_s else 0.0,
            outages=tuple(outages),
        )

    def _is_another(self, config: ServerConfig) -> bool:
        """Return whether the configuration changed. A server gets all of it for each change of robots; a restart draws
        new epochs."""
        return self._given is not None and replace(config, first_epoch=self._given.first_epoch) != self._given

    def _request(self, record: Record) -> None:
        request = record["event"]["request"]
        key = key_of(request.get("id", request))
        self.arrived.add(key)
        if record["event"]["~"] == "RequestEnqueued" and "raised" not in record:
            self._deposited_s[key] = record["t"]
            self.intakes_s.append(record["t"] - record["now_s"])

    def _begun(self, record: Record) -> None:
        batch, engine = record["result"], record["event"]["engine"]
        self.overflowed += bool(engine and batch)
        if engine or not batch:
            return
        continuous = self.config.max_concurrent > 1
        size = len(self._running) + 1 if continuous else record["padded_rows"]
        self._running[batch["batch"]] = record, size
        waited = all(self._deposited_s.get(key_of(one), math.inf) <= self._ended_s for one in batch["requests"])
        if waited and not continuous:
            self.pauses_s.append(record["now_s"] - self._ended_s)

    def _ended(self, record: Record, chain: Chain) -> None:
        number = record["event"]["batch"]
        if number not in self._running:
            return
        begun, size = self._running.pop(number)
        self._ended_s = record["now_s"]
        seconds = record["now_s"] - begun["now_s"]
        self.batches.append(Batch(chain.at_s(begun["now_s"]), len(begun["result"]["requests"]), size, seconds))


def key_of(found: Mapping[str, object]) -> Key:
    """Return the key of a recorded `RequestId`."""
    return str(found["robot"]), str(found["component"]), int(str(found["session_epoch"])), int(str(found["sequence"]))


def servers_of(chains: Iterable[Chain]) -> dict[str, ServerRead]:
    found: dict[str, ServerRead] = {}
    for chain in chains:
        if chain.role != "server":
            continue
        recorded = [record for record in chain.records if record["kind"] in ("begin", "snapshot")]
        config, contract = first(recorded, ServerConfig), first(recorded, ModelContract)
        if config is not None and contract is not None:
            found.setdefault(config.name, ServerRead(side_by_side(config, contract), contract, _given=config)).read(chain)
    return found


def side_by_side(config: ServerConfig, contract: ModelContract) -> ServerConfig:
    """Return a configuration in which step-by-step rows are requests that share an engine: the more, the slower each of them."""
    if config.batching != CONTINUOUS or contract.output is not OutputKind.ACTION_CHUNK:
        return config
    return replace(config, batching="fixed", max_concurrent=max(2, min(config.batch_size, MOST_ROWS)))


def outages_of(ready_s: Sequence[tuple[float, bool]], seconds: float) -> list[Outage]:
    """Return the outages from a status that reports readiness to the next one. ready_s: time and readiness of each status."""
    found: list[Outage] = []
    last_s = 0.0
    for at_s in [*(at_s for at_s, ready in ready_s if ready), seconds]:
        if at_s - last_s > SILENT_S:
            found.append(Outage(min(last_s + STATUS_S / 2, at_s) if last_s else 0.0, at_s))
        last_s = at_s
    return found
