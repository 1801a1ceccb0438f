"""Tables of the results for display."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from rich.table import Table

from lab.benchmarks.predictions.run import KINDS, Case, Server
from ros2_rfm_serving.operate.inputs import console

WORSE = 0.03
"""Relative loss of goodput that is more than the scatter of a few runs."""


def show(found: Sequence[Case]) -> None:
    console.print(_table(found))
    for kind in KINDS:
        mine = [case for case in found if case.kind == kind]
        broken = {case.seed: case.aware.missed for case in mine if case.aware.missed}
        console.print(
            f"{kind}: {len(mine)} factories; an SLO is missed beyond chance in {len(broken)}; "
            f"actions/s within 10 % of what is expected in {sum(case.aware.acts_as_expected for case in mine)}{_farthest(mine)}"
        )
        for seed, missed in broken.items():
            console.print(f"  {seed}: {'; '.join(missed)}")
    _compare([case for case in found if case.blind])


def _farthest(mine: Sequence[Case]) -> str:
    """Return a text on the factory that is farthest from its expectation."""
    worst = max(mine, key=lambda case: abs(case.aware.acted - case.aware.expected) / case.aware.expected, default=None)
    return f" ({worst.aware.acted:.1f} of {worst.aware.expected:.1f} at worst, seed {worst.seed})" if worst else ""


def servers_of(found: Sequence[Case], kind: str) -> list[Server]:
    return [server for case in found if case.kind == kind for server in case.aware.servers]


def _table(found: Sequence[Case]) -> Table:
    table = Table(title="p99 of servers: share that is within 10 %", title_justify="left")
    for heading in ("", "servers"):
        table.add_column(heading)
    for heading in ("prediction, of a run", "of the median run", "two runs of each other", "a run, of the median of all others"):
        table.add_column(heading, justify="right")
    for name in KINDS:
        every = servers_of(found, name)
        for kind in ("", *sorted({server.kind for server in every})):
            mine = [server for server in every if kind in ("", server.kind)]
            if mine:
                means = [fmean(values) for values in zip(*((s.hits, s.is_right, s.twins, s.others) for s in mine), strict=True)]
                table.add_row(f"{name}{kind and ', '}{kind}", str(len(mine)), *(f"{100 * mean:.0f} %" for mean in means))
    return table


def _compare(far: Sequence[Case]) -> None:
    """Compare plans that know the network with those that do not."""
    if not far:
        return
    worse = [case for case in far if case.gained < -WORSE]
    console.print(
        f"knowing the network: goodput {100 * median(case.gained for case in far):+.1f} % (median of {len(far)} factories), "
        f"by more than 3 % better in {sum(case.gained > WORSE for case in far)}, worse in {len(worse)}; "
        f"an SLO missed in {sum(bool(case.aware.missed) for case in far)}, without knowing it in "
        f"{sum(bool(case.blind and case.blind.missed) for case in far)}"
    )
    for case in worse:
        assert case.blind
        figures = f"{case.aware.goodput:.1f} /s, blind {case.blind.goodput:.1f} ({100 * case.gained:+.1f} %)"
        why = f"blind it misses {'; '.join(case.blind.missed)}" if case.blind.missed else "blind it keeps every SLO too"
        console.print(f"  {case.seed}: {figures}: {why}")
