"""Does a schedule still hold, by what is known now? Every SLO at the load that the schedule expects, and every floor."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.prediction.parts import parted
from ros2_rfm_serving.scheduler.prediction.predict import Operation, keeps_every_slo
from ros2_rfm_serving.scheduler.prediction.rates import Host
from ros2_rfm_serving.types import SYSTEM1

ROUNDING = 1e-3


def broken(fleet: Fleet) -> tuple[str, ...]:
    """What does not hold any more, in words."""
    slos = tuple(_slos(fleet))
    return (*(() if slos and _keep_by_own_queue(fleet) else slos), *_floors(fleet))


def _slos(fleet: Fleet) -> Iterator[str]:
    for name, host in fleet.hosts.items():
        most_hz = host.capacity_hz(list(host.slos), fleet.curves)
        if host.sessions and host.load_hz > most_hz * (1 + ROUNDING):
            yield f"{name}: {host.load_hz:.1f} requests/s are planned, by what was measured {most_hz:.1f} keep every SLO"


def _keep_by_own_queue(fleet: Fleet) -> bool:
    """Robots that nothing limits: by the law that such plans are made with."""
    if any(math.isfinite(route.max_rate_hz) for route in fleet.schedule.routes if route.component == SYSTEM1):
        return False
    seated = (host for host in fleet.hosts.values() if host.sessions)
    parts = parted(fleet.problem, [Host(host.config, tuple(sorted(host.demands.items()))) for host in seated])
    return keeps_every_slo(parts.problem, fleet.curves, Operation(hosts=parts.hosts, caps=None))


def _floors(fleet: Fleet) -> Iterator[str]:
    for name, (rate_hz, floor_hz) in fleet.paces_hz().items():
        if rate_hz < floor_hz * (1 - ROUNDING):
            yield f"{name!r}: its robots reach {rate_hz:.2f} actions/s by what was measured, {floor_hz:.2f} are promised"
