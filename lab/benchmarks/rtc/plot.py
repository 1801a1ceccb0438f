"""Figure of `rfm bench rtc`: success and smoothness over the injected delay, a line per mode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.benchmarks.rtc.cells import Cell

COLOURS = {
    "synchronous": "#7f7f7f",
    "naive": "#d62728",
    "guided": "#ff7f0e",
    "training-time": "#9467bd",
    "default": "#1f77b4",
}
SPREAD = 0.12
"""Horizontal distance of modes, in steps."""


def draw(cells: Sequence[Cell], file: Path) -> None:
    """Draw success with its 95 % interval, largest seam jump of an episode, and idle steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (success, seam, idle) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    modes = list(dict.fromkeys(cell.mode for cell in cells))
    for number, mode in enumerate(modes):
        of_mode = [cell for cell in cells if cell.mode == mode]
        at = [cell.delay_steps + SPREAD * (number - (len(modes) - 1) / 2) for cell in of_mode]
        colour = COLOURS.get(mode)
        _success(success, at, of_mode, mode, colour)
        seam.plot(at, [sum(c.seam_jump) / max(1, len(c.seam_jump)) for c in of_mode], "o-", color=colour)
        idle.plot(at, [sum(c.idle_steps) / max(1, len(c.idle_steps)) for c in of_mode], "o-", color=colour)
    for axes, label in ((success, "success"), (seam, "largest seam jump, mean over episodes"), (idle, "idle steps per episode")):
        axes.set_xlabel("injected inference delay, control steps")
        axes.set_ylabel(label)
        axes.set_xticks(sorted({cell.delay_steps for cell in cells}))
        axes.grid(alpha=0.3)
    success.legend(fontsize="small")
    seam.set_ylim(bottom=0)
    figure.savefig(file)


def _success(axes: Any, at: list[float], cells: Sequence[Cell], mode: str, colour: str | None) -> None:
    from ros2_rfm_serving.monitoring.board import wilson_interval

    shares = [wins / n if n else 0.0 for wins, n in (cell.success for cell in cells)]
    intervals = [wilson_interval(*cell.success) for cell in cells]
    errors = [[max(0.0, s - low) for s, (low, _) in zip(shares, intervals, strict=True)]]
    errors.append([max(0.0, high - s) for s, (_, high) in zip(shares, intervals, strict=True)])
    axes.errorbar(at, shares, yerr=errors, fmt="o-", color=colour, label=mode, capsize=2, linewidth=1.2)
