"""Figure of `rfm bench dispatch`: the fastest quarter of all tasks against the slowest twentieth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.benchmarks.dispatch.run import Row


def draw(found: Sequence[Row], frontiers: Mapping[str, Sequence[Mapping[str, float]]], file: Path) -> None:
    """Draw a panel per scenario: every policy, and a line through those between `best` and `swift`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(frontiers), figsize=(5.2 * len(frontiers), 3.8), layout="constrained", squeeze=False)
    for axes, (scenario, line) in zip(panels[0], frontiers.items(), strict=True):
        axes.plot([f["p25"] for f in line], [f["p95"] for f in line], "-", color="#9ecae1", linewidth=5, zorder=1)
        for row in found:
            if row.scenario == scenario:
                colour = "#1f77b4" if row.policy in ("best", "balanced", "swift") else "#d62728"
                at = row.figures["p25"], row.figures["p95"]
                axes.plot(*at, "o", color=colour, zorder=2)
                axes.annotate(row.policy, at, xytext=(5, 4), textcoords="offset points", fontsize="small", color=colour)
        axes.set_title(scenario, fontsize="medium")
        axes.set_xlabel("P25 of a task's time, s")
        axes.set_ylabel("P95, s")
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)
