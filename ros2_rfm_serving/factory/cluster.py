"""Sections of the descriptor for servers, standbys and the caution of plans."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ros2_rfm_serving.factory.cores import cores_of, cores_text
from ros2_rfm_serving.factory.section import Section

CONTINUOUS, WAIT = "continuous", "wait"
AUTOMATIC = "auto"
"""Value in place of a dispatch policy: the planner chooses one."""
SLO_MARGIN = 0.0
"""Default of `slo_margin`."""


def _some_cores(text: str) -> str:
    if not cores_of(text):
        raise ValueError("names no core")
    return cores_text(cores_of(text))


Cores = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value), AfterValidator(_some_cores)]
"""Cores such as 0-3,8; a single core may be a number."""


GpuName = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
"""Name of a type of GPU; `4090` may be written as a number."""


class Overflow(Section):
    """A remote server for requests that a server of the group cannot answer in time (Kairos §3.2.3). Ours."""

    url: str = Field(pattern=r"^wss?://")
    """Address of its gateway for clients without ROS (docs/gateway.md)."""
    round_trip_ms: float = Field(gt=0)
    batches_in_flight: int = Field(default=2, ge=1, le=8)
    """Maximum number of batches in transit: with one, the remote server idles for a round trip between two batches."""
    token_env: str = ""
    """Environment variable with its token; empty: none."""


class ServerCluster(Section):
    num_servers: int = Field(ge=1, le=10_000)
    dispatch: str = "balanced"
    """Dispatch policy: `balanced`, `best`, `swift`, `fifo`, `least_attained`, `wait_ratio`, `deadline`, or a policy of one's own
    (docs/server.md describes their strengths); `auto`: the planner chooses. Ours."""
    batching: str = "fixed"
    """Batching policy: `fixed`, `saturation` or `wait`; `continuous`: models that can advance one solver step at a time let
    requests join a running batch. Ours."""
    refetch_after_ms: float = Field(default=0.0, ge=0)
    """Age above which an observation is requested again before it is used, if that costs nothing; 0: never. Ours."""
    overflow: Overflow | None = None
    parity: Literal["on_request", "at_start"] = "on_request"
    """`at_start`: each model is compared with its reference before it is served, and not served when the deviation of a block
    exceeds its limit; `on_request`: only models for which the catalogue requires it. Ours."""
    gpu_type: GpuName = Field(min_length=1)
    hosts: tuple[str, ...] = ()
    """Machines that its servers may run on; empty: any that has such GPUs. Ours."""
    threads: int = Field(default=1, ge=1, le=4096)
    """CPU threads of each server's engine. Ours."""
    cores: tuple[Cores, ...] = ()
    """Processor cores of each server's process, in their order; empty: the system chooses. Ours."""

    @model_validator(mode="after")
    def _cores_for_each(self) -> ServerCluster:
        if self.cores and len(self.cores) != self.num_servers:
            raise ValueError(
                f"`cores` is of {len(self.cores)} servers, and `num_servers` is {self.num_servers}: name them for each"
            )
        return self

    def cores_of(self, index: int) -> str:
        """Return the cores of the index-th server. Servers beyond the declared number, which only a what-if query has, have
        none."""
        return self.cores[index] if index < len(self.cores) else ""

    def __str__(self) -> str:
        return f"{self.num_servers} x {self.gpu_type}" + (" (batching continuously)" if self.batching == CONTINUOUS else "")


class Standby(Section):
    """Servers that replace one that is lost (ROSA §3.4.4). Ours."""

    num_servers: int = Field(default=0, ge=0)
    """Number of servers of the cluster that are kept ready with a model loaded, and out of the normal routes."""
    peers: bool = True
    """Use another server with the same model where no reserved server covers a loss, if it still meets every SLO."""
    same_host: bool = False
    """Allow a standby on the host of the server that it covers, where there are several `hosts` and no other can cover it. That
    helps when a process ends, but not when the host is lost."""


class StragglerConfig(Section):
    """Services that take longer than others, because of a throttled GPU, a page fault or a neighbour. Ours."""

    share: float = Field(gt=0, le=0.5)
    """Share of all services: of batches, or of answers of servers that all clients share."""
    factor: float = Field(gt=1, le=100)
    """Service time as a multiple of the usual one."""

    @property
    def pace(self) -> float:
        """Mean over all services of the service time, as a multiple of the time without stragglers."""
        return 1.0 + self.share * (self.factor - 1.0)


class Planning(Section):
    """Objective and caution of plans. Ours."""

    objective: Literal["throughput", "proportional", "max_min"] = "proportional"
    """Objective by which plans are compared: the sum of all weighted actions (ROSA's), or one that neglects no class
    (docs/reference/scheduler.md)."""

    slo_margin: float = Field(default=SLO_MARGIN, ge=0, le=0.5)
    """Share of every SLO that no prediction may use; it is subtracted first, before the network's part.
    docs/reference/scheduler.md explains why the default is 0."""
    stragglers: StragglerConfig | None = None
    """Plans keep every SLO in spite of these; None: all services scatter as they did when profiles were measured."""
    link_share: float = Field(default=0.9, ge=0.05, le=1)
    """Largest share of a host's `bandwidth_mbit_s`, each way, that a plan uses."""
