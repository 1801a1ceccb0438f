"""Does a schedule still hold, by what is known now? Every SLO at the load that the schedule expects, and every floor."""

from __future__ import annotations

from collections.abc import Iterator

from ros2_rfm_serving.scheduler.adaptation import Fleet

ROUNDING = 1e-3


def broken(fleet: Fleet) -> tuple[str, ...]:
    """What does not hold any more, in words."""
    return (*_slos(fleet), *_floors(fleet))


def _slos(fleet: Fleet) -> Iterator[str]:
    for name, host in fleet.hosts.items():
        most_hz = host.capacity_hz(list(host.slos), fleet.curves)
        if host.sessions and host.load_hz > most_hz * (1 + ROUNDING):
            yield f"{name}: {host.load_hz:.1f} requests/s are planned, by what was measured {most_hz:.1f} keep every SLO"


def _floors(fleet: Fleet) -> Iterator[str]:
    for name, (rate_hz, floor_hz) in fleet.paces_hz().items():
        if rate_hz < floor_hz * (1 - ROUNDING):
            yield f"{name!r}: its robots reach {rate_hz:.2f} actions/s by what was measured, {floor_hz:.2f} are promised"
