"""`rfm bench network`: one robot over a bad network with interruptions, at several control rates."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.faults import FaultPlan
from ros2_rfm_serving.shipped import shipped

console = Console() if Console().is_terminal else Console(width=120)
LEVELS = ("STREAMING", "DEGRADED", "STALLED", "RECONNECTING", "CONNECTING", "DEAD")
"""Levels of the plot, best first."""
SHORT_CUT_S, ONE_WAY_CUT_S = 2.0, 6.0
DEGRADED_AFTER_S = 0.2
"""Shorter than the default, so that the state shows before the queue is empty."""


def network(
    faults: Annotated[str, typer.Option(help="Of every frame, each way")] = "delay_ms=25 jitter_ms=10 drop=0.05",
    cuts: Annotated[str, typer.Option(help="Seconds of each cut, one after the other, at the first rate")] = "2,90",
    rates: Annotated[
        str, typer.Option(help="Control rates in Hz, one run each; those after the first with one cut of 2 s")
    ] = "30,100,200",
    profile: Annotated[str, typer.Option(help="Fast DDS profile in config/dds; empty: Fast DDS's defaults")] = "wan.xml",
    best_effort: Annotated[bool, typer.Option("--best-effort", help="Observations that are lost are not sent again")] = False,
    image_size_px: Annotated[int, typer.Option(min=16, help="Two cameras of this width and height")] = 96,
    seconds: Annotated[float, typer.Option(min=1, help="At work before the first cut and after each")] = 20.0,
    max_offline_s: Annotated[float, typer.Option(min=0, help="Of the robot: offline for longer it is DEAD; 0: never")] = 60.0,
    logs: Annotated[Path | None, typer.Option(help="Folder of the logs; default: a temporary one")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the states over time (needs matplotlib)")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there")] = None,
) -> None:
    """A robot's states, recovery and punctuality while its network is bad, cut and joined again. Linux, as root.

    After the cuts at the first rate comes one of 6 s in which only what the robot sends is lost.

    The robot and the server, an emulated model, run in network namespaces of this machine (docs/networks.md).

    Example:  sudo rfm bench network --cuts 2,90 --plot network.svg
    """
    from lab.benchmarks.network.run import Scenario, run_scenario

    FaultPlan.parse(faults)
    shipped("config", "dds", profile)
    rates_hz, cuts_s = _numbers("--rates", rates), _numbers("--cuts", cuts)
    folder = logs or Path(tempfile.mkdtemp(prefix="rfm_network_"))
    console.print(f"logs in {folder}")
    runs: dict[str, dict[str, Any]] = {}
    for i, rate_hz in enumerate(rates_hz):
        scenario = Scenario(
            control_rate_hz=rate_hz,
            faults=faults,
            profile=profile,
            reliable_observations=not best_effort,
            steady_s=seconds,
            cuts_s=tuple(cuts_s) if i == 0 else (SHORT_CUT_S,),
            one_way_cuts_s=(ONE_WAY_CUT_S,) if i == 0 else (),
            image_size_px=image_size_px,
            robot={"failsafe.max_offline_s": max_offline_s, "failsafe.degraded_after_s": DEGRADED_AFTER_S},
        )
        name = f"{rate_hz:g} Hz"
        heard = run_scenario(scenario, folder / f"{rate_hz:g}_hz", say=lambda what, name=name: console.print(f"{name}: {what}"))  # type: ignore[misc]
        runs[name] = heard.figures()
    console.print(_states_table(runs))
    console.print(_figures_table(runs))
    if json_file:
        json_file.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    if plot:
        _draw(runs, plot, faults)


def _numbers(option: str, text: str) -> list[float]:
    """Parse positive numbers. Raises: `ConfigurationError`."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(f"{text!r} is not numbers", key=option, fix="write them with commas between") from None
    if not all(number > 0 for number in numbers):
        raise ConfigurationError(f"{text!r} holds what is not above 0", key=option)
    return numbers


def _states_table(runs: dict[str, dict[str, Any]]) -> Table:
    table = Table("run", "s", "", title="States, seconds from the first chunk")
    for name, figures in runs.items():
        events = [(at_s, f"[bold]{state}[/bold] {reason}") for at_s, state, reason in figures["states"]]
        for cut_s, joined_s in figures["cuts"]:
            events += [(cut_s, "[red]the network is cut[/red]"), (joined_s, "[green]the network is back[/green]")]
        for at_s, what in sorted(events):
            table.add_row(name, f"{at_s:.1f}", what)
        table.add_section()
    return table


def _figures_table(runs: dict[str, dict[str, Any]]) -> Table:
    table = Table("", *runs)
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "chunks/s before the first cut": lambda f: f"{f['chunks_per_s']:.2f}",
        "round trip p50, p99 (ms)": lambda f: f"{f['round_trip_p50_ms']:.0f}, {f['round_trip_p99_ms']:.0f}",
        "end of a cut to the first chunk (s)": lambda f: ", ".join(f"{s:.1f}" for s in f["recoveries_s"]),
        "actions executed, periods held": lambda f: f"{f['executed']}, {f['held']}",
        "control periods, missed": _periods,
        "tick lateness p50, p99 of the worst window (ms)": _lateness,
        "the same of a timer that does next to nothing": lambda f: f"{_periods(f['bare_timer'])}; {_lateness(f['bare_timer'])}",
        "tasks ended": _ends,
        "refused by the robot": lambda f: ", ".join(f"{name} {count}" for name, count in f["refused"].items()) or "nothing",
    }
    for label, text in rows.items():
        table.add_row(label, *[text(figures) for figures in runs.values()])
    return table


def _periods(figures: dict[str, Any]) -> str:
    return f"{figures['ticks']:.0f}, {figures['missed_periods']:.0f}"


def _lateness(figures: dict[str, Any]) -> str:
    return f"{figures['tick_late_p50_ms']:.2f}, {figures['tick_late_p99_ms']:.2f}"


def _ends(figures: dict[str, Any]) -> str:
    ends = Counter(f"{code} {why}" for code, why in figures["results"])
    return "; ".join(f"{what} (x{count})" if count > 1 else what for what, count in ends.items()) or "none"


def _draw(runs: dict[str, dict[str, Any]], file: Path, faults: str) -> None:
    from ros2_rfm_serving.reports import charts

    name, figures = next(iter(runs.items()))
    figure, (axis,) = charts.figure_of(10, 2.8, 1)
    states = figures["states"]
    times_s = [at_s for at_s, _, _ in states]
    end_s = max([times_s[-1], *(joined_s for _, joined_s in figures["cuts"])]) + 10.0
    levels = [LEVELS[::-1].index(state) for _, state, _ in states]
    axis.step([*times_s, end_s], [*levels, levels[-1]], where="post", color="black")
    for cut_s, joined_s in figures["cuts"]:
        axis.axvspan(cut_s, joined_s, color="tab:red", alpha=0.2, linewidth=0)
    axis.set_yticks(range(len(LEVELS)), LEVELS[::-1])
    axis.set_xlabel("seconds from the first chunk; red: the network is cut")
    axis.set_title(f"States of a robot at {name} over {faults}", fontsize="medium")
    charts.save(figure, file)
