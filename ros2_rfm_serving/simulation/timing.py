"""Service law of each placement in a simulated factory, and the GPU that implements it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ros2_rfm_serving.engines.emulated import EmulatedSpec, as_it_is
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import Catalogue
from ros2_rfm_serving.profiles import (
    ContinuousService,
    MeasuredService,
    Profile,
    ServiceLaw,
    SteppedService,
    measured_service,
)
from ros2_rfm_serving.simulation.gpu import BatchGpu, SharedGpu, SimulatedGpu, SteppedGpu, StragglerFactors, Unsure
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import OutputKind, Placement
from ros2_rfm_serving.virtual_time.events import source


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Sources of the models' service times."""

    catalogue: Catalogue
    profile: Profile

    def law(self, placement: Placement) -> tuple[ServiceLaw | SteppedService | MeasuredService, tuple[int, ...]]:
        """Return the law of a placement and the batch sizes that run: the catalogue's, or else the measured ones.

        Raises: `ModelError` when neither is known.
        """
        model, gpu_type = placement.model, placement.gpu_type
        footprint = self.catalogue[model].gpus.get(gpu_type)
        if footprint and footprint.service:
            stepped = footprint.service.stepped_law() if placement.batching == "continuous" else None
            if stepped:
                return stepped, stepped.sizes
            law = footprint.service.law()
            if law.batching != placement.batching:
                way = "state its `steps`" if law.batching == "fixed" else "schedule it with profiles of the same kind"
                raise ModelError(
                    f"{placement.server}: the schedule batches {model!r} {placement.batching!r}, the catalogue {law.batching!r}; "
                    f"{way}"
                )
            return law, footprint.service.batch_sizes
        measured = measured_service(self.profile, model, gpu_type) if placement.batching == "fixed" else None
        if measured is None:
            raise ModelError(
                f"{model!r} cannot be simulated on {gpu_type!r}: nobody has said how long it takes there; measure it with "
                f"`rfm profile {model} --gpu-type '{gpu_type}'`, or state a `service:` below models.{model}.gpus"
            )
        return measured, (max(placement.batch_size, measured.max_batch_size),)


def build_gpu(
    placement: Placement, timing: Timing, world: World, chunk_length: int, rows: Mapping[str, int], *, name: str = ""
) -> SimulatedGpu:
    """Return the GPU of a placement. rows: as in `Unsure`. name: in place of the server's.

    Raises: `ModelError` when the service time of the model there is not known.
    """
    law, sizes = timing.law(placement)
    name = name or placement.server
    spec = EmulatedSpec(
        model=placement.model,
        output=OutputKind(timing.catalogue[placement.model].output),
        chunk_length=chunk_length,
        seed=source(world.seed, "service", name).getrandbits(32),
    )
    stragglers = StragglerFactors(world, name)
    unsure = Unsure(rows, spec.seed + 1, world) if rows else as_it_is
    if isinstance(law, SteppedService):
        return SteppedGpu(stragglers, replace(spec, batch_sizes=sizes), law, unsure)
    if isinstance(law, ContinuousService):
        return SharedGpu(world, stragglers, spec, law, unsure)
    return BatchGpu(world, stragglers, replace(spec, batch_sizes=sizes), law, unsure)
