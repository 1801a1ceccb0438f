"""Sections of the descriptor: the servers, those that stand by, and how cautious plans are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ros2_rfm_serving.factory.cores import cores_of, in_words
from ros2_rfm_serving.factory.section import Section

CONTINUOUS, WAIT = "continuous", "wait"
AUTOMATIC = "auto"
"""In place of a dispatch policy: the planner chooses."""
SLO_MARGIN = 0.0
"""Unless it is declared."""


def _some_cores(text: str) -> str:
    if not cores_of(text):
        raise ValueError("names no core")
    return in_words(cores_of(text))


Cores = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value), AfterValidator(_some_cores)]
"""Such as 0-3,8; a core alone may be a number."""


GpuName = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
"""Name of a type of GPU; `4090` may be written as a number."""


class Overflow(Section):
    """A server elsewhere that takes what a server of the group cannot answer in time (Kairos §3.2.3). Ours."""

    url: str = Field(pattern=r"^wss?://")
    """Of its door for clients without ROS (docs/gateway.md)."""
    round_trip_ms: float = Field(gt=0)
    batches_in_flight: int = Field(default=2, ge=1, le=8)
    """On their way there or back at once: with one, the server elsewhere idles for a round trip between two batches."""
    token_env: str = ""
    """Environment variable with its token; empty: none."""


class ServerCluster(Section):
    num_servers: int = Field(ge=1, le=10_000)
    dispatch: str = "balanced"
    """Whose request runs next: `balanced`, `best`, `swift`, `fifo`, `least_attained`, `wait_ratio`, `deadline`, or one of one's own
    (docs/server.md says what each is good at); `auto`: the planner chooses. Ours."""
    batching: str = "fixed"
    """How many run together: `fixed`, `saturation` or `wait`; `continuous`: models that can advance one solver step at a time let
    requests join a running batch. Ours."""
    refetch_after_ms: float = Field(default=0.0, ge=0)
    """An observation that would be older when it is used is asked for again if that costs nothing; 0: never. Ours."""
    overflow: Overflow | None = None
    parity: Literal["on_request", "at_start"] = "on_request"
    """`at_start`: each model is held against its reference before it is served, and not served when a block is further off than it
    may be; `on_request`: those alone of which the catalogue says so. Ours."""
    gpu_type: GpuName = Field(min_length=1)
    hosts: tuple[str, ...] = ()
    """Machines that its servers may run on; empty: any that has such GPUs. Ours."""
    threads: int = Field(default=1, ge=1, le=4096)
    """CPU threads of each server's engine. Ours."""
    cores: tuple[Cores, ...] = ()
    """Of its servers' processes, one after the other; empty: wherever the system puts them. Ours."""

    @model_validator(mode="after")
    def _cores_for_each(self) -> ServerCluster:
        if self.cores and len(self.cores) != self.num_servers:
            raise ValueError(
                f"`cores` is of {len(self.cores)} servers, and `num_servers` is {self.num_servers}: name them for each"
            )
        return self

    def cores_of(self, index: int) -> str:
        """Of the index-th of its servers. Of those beyond its number, which only a question knows, none."""
        return self.cores[index] if index < len(self.cores) else ""

    def __str__(self) -> str:
        return f"{self.num_servers} x {self.gpu_type}" + (" (batching continuously)" if self.batching == CONTINUOUS else "")


class Standby(Section):
    """Servers that take over when another is lost (ROSA §3.4.4). Ours."""

    num_servers: int = Field(default=0, ge=0)
    """Of the cluster's, kept warm with a model loaded and out of the normal routes."""
    peers: bool = True
    """Where no reserved server covers a loss: another one with the same model, if it still meets every SLO."""
    same_host: bool = False
    """Of several `hosts`: a standby may be on the host of the server that it covers, if no other can. That helps when a process
    ends, not when the host is lost."""


class Stragglers(Section):
    """Services that take longer than others: a throttled GPU, a page fault, a neighbour. Ours."""

    share: float = Field(gt=0, le=0.5)
    """Of all services: batches, or answers of servers that all who ask share."""
    factor: float = Field(gt=1, le=100)
    """Times as long as usual."""

    @property
    def pace(self) -> float:
        """Times as long as without them, of all services, mean."""
        return 1.0 + self.share * (self.factor - 1.0)


class Planning(Section):
    """What a plan is to reach, and how cautious it is. Ours."""

    objective: Literal["throughput", "proportional", "max_min"] = "proportional"
    """What plans are compared by: the sum of all weighted actions (ROSA's), or what leaves no class behind: docs/scheduler.md."""

    slo_margin: float = Field(default=SLO_MARGIN, ge=0, le=0.5)
    """Share of every SLO that no prediction may use up: taken off first, before the network's part. Why none is the default:
    docs/scheduler.md."""
    stragglers: Stragglers | None = None
    """Plans keep every SLO with them; None: all services scatter as they did when profiles were measured."""
    link_share: float = Field(default=0.9, ge=0.05, le=1)
    """Of a host's `bandwidth_mbit_s`, each way, that no plan asks for more than."""
