"""Laws of the catalogue, and the robots of Fig. 10: 64 uncapped robots on P4, simulated in ROSA's placement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import mean

from lab.reproductions.rosa.bindings import closed_crowd
from lab.reproductions.rosa.laws import Laws
from lab.reproductions.rosa.runs import Inputs, Point, Setting, run
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.factory.catalogue import ServiceEntry
from ros2_rfm_serving.profiles.service import ContinuousService, FixedService
from ros2_rfm_serving.scheduler import to_schedule
from ros2_rfm_serving.simulation.simulate import simulate
from ros2_rfm_serving.types import SYSTEM1

ROBOTS = 64
SEEDS = range(4)
PLACES = (SYSTEM1, "system2", "safety")
"""Components of P4, in the order of `Laws`."""


def shipped_laws(inputs: Inputs) -> Laws:
    """Return the laws of the catalogue. inputs: P4."""
    system1, reasoning, checking = (_service(inputs, component).law() for component in PLACES)
    assert isinstance(system1, FixedService), "ROSA's action model runs fixed batches"
    assert isinstance(reasoning, ContinuousService) and isinstance(checking, ContinuousService), (
        "and its text models continuous ones"
    )
    return Laws(system1=system1, reasoning=reasoning, checking=checking)


def crowd(laws: Laws, inputs: Inputs, setting: Setting, seeds: Iterable[int] = SEEDS) -> float:
    """Return the simulated minus the closed queue's share within the SLO: robots return together from a common System 2."""
    point = Point(workload="p4", num_robots=ROBOTS, policy="rosa", capped=False)
    schedule = to_schedule(run(point, inputs, replace(setting, seconds=1.0)).solution, _many(inputs).robots, epoch=1)
    catalogue = _with_laws(inputs, laws)
    reports = (simulate(schedule, _many(inputs), catalogue, seconds=setting.seconds, seed=seed) for seed in seeds)
    return mean(report.components[SYSTEM1].slo_attainment for report in reports) - closed_crowd(laws)


def _many(inputs: Inputs) -> Factory:
    return inputs.factory.with_num_robots(ROBOTS)


def _model(inputs: Inputs, component: str) -> str:
    (task,) = inputs.factory.tasks.values()
    return task.components[component].model


def _gpu_type(inputs: Inputs) -> str:
    return next(iter(inputs.factory.gpu_types.values()))


def _service(inputs: Inputs, component: str) -> ServiceEntry:
    model, gpu_type = _model(inputs, component), _gpu_type(inputs)
    footprint = inputs.catalogue.footprint(model, gpu_type)
    if footprint is None or footprint.service is None:
        raise ModelError(f"{model!r} has no `service` on {gpu_type!r} in models.yaml: a law to compare is wanted")
    return footprint.service


def _with_laws(inputs: Inputs, laws: Laws) -> Catalogue:
    system1, wave = laws.system1, laws.system1.wave
    first = _service(inputs, SYSTEM1)
    rows = {"from_rows": wave.from_rows, "extra_rows": wave.extra_rows}
    services = {
        SYSTEM1: first.model_copy(
            update={
                "base_ms": 1e3 * system1.base_s,
                "per_row_ms": 1e3 * system1.per_row_s,
                "wave": first.wave.model_copy(update=rows) if first.wave else None,
                "steps": None,
            }
        )
    }
    for component, law in zip(PLACES[1:], (laws.reasoning, laws.checking), strict=True):
        update = {"base_ms": 1e3 * law.base_s, "per_request_ms": 1e3 * law.per_request_s}
        services[component] = _service(inputs, component).model_copy(update=update)
    models = dict(inputs.catalogue.models)
    for component, service in services.items():
        entry, gpu_type = models[_model(inputs, component)], _gpu_type(inputs)
        footprint = entry.gpus[gpu_type].model_copy(update={"service": service})
        models[_model(inputs, component)] = entry.model_copy(update={"gpus": {**entry.gpus, gpu_type: footprint}})
    return inputs.catalogue.model_copy(update={"models": models})
