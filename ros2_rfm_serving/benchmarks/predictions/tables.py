"""What was found, for people."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from rich.table import Table

from ros2_rfm_serving.benchmarks.predictions.run import Case, Server
from ros2_rfm_serving.operate.inputs import console

WORSE = 0.03
"""Of the goodput: less is the scatter of a few runs."""
KINDS = {False: "no network", True: "with networks"}


def show(found: Sequence[Case]) -> None:
    console.print(_table(found))
    for network, name in KINDS.items():
        mine = [case for case in found if case.network == network]
        broken = {case.seed: case.aware.missed for case in mine if case.aware.missed}
        console.print(f"{name}: {len(mine)} factories; an SLO is missed beyond chance in {len(broken)}")
        for seed, missed in broken.items():
            console.print(f"  {seed}: {'; '.join(missed)}")
    _compare([case for case in found if case.blind])


def servers_of(found: Sequence[Case], network: bool) -> list[Server]:
    return [server for case in found if case.network == network for server in case.aware.servers]


def _table(found: Sequence[Case]) -> Table:
    table = Table(title="p99 of servers: share that is within 10 %", title_justify="left")
    for heading in ("", "servers"):
        table.add_column(heading)
    for heading in ("prediction, of a run", "of the median run", "two runs of each other", "a run, of the median of all others"):
        table.add_column(heading, justify="right")
    for network, name in KINDS.items():
        every = servers_of(found, network)
        for kind in ("", *sorted({server.kind for server in every})):
            mine = [server for server in every if kind in ("", server.kind)]
            if mine:
                means = [fmean(values) for values in zip(*((s.hits, s.is_right, s.twins, s.others) for s in mine), strict=True)]
                table.add_row(f"{name}{kind and ', '}{kind}", str(len(mine)), *(f"{100 * mean:.0f} %" for mean in means))
    return table


def _compare(far: Sequence[Case]) -> None:
    """Plans that know the network with those that do not."""
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
