"""`rfm reproduce auras`: one robot's requests in flight together, timed on this machine and run in simulated worlds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lab.reproductions.auras.points import FIGURES, Point, points_of
from lab.reproductions.claims import claims_table
from lab.reproductions.files import make_folder
from lab.reproductions.machine import this_machine
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.operate.inputs import console
from ros2_rfm_serving.processor import processor
from ros2_rfm_serving.reports.charts import require_matplotlib
from ros2_rfm_serving.shipped import shipped

if TYPE_CHECKING:
    from lab.reproductions.auras.laboratory import Laboratory
    from lab.reproductions.auras.measured import Measured

EPISODES, QUICK_EPISODES = 52, 4
ANEW = "measure anew, with --anew, or choose another folder"


def auras(
    figure: Annotated[
        str, typer.Option(metavar="|".join((*FIGURES, "all")), help="10: success and throughput of all modes")
    ] = "all",
    episodes: Annotated[int, typer.Option(min=1, help="Per point, over the four tasks")] = EPISODES,
    noise: Annotated[
        float, typer.Option(min=0, help="Standard deviation of what is added to executed actions, full scale 1")
    ] = 0.0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The page, data and plots go there")] = Path("reproductions/auras"),
    models: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the bundles; default: the shipped ones")] = None,
    anew: Annotated[bool, typer.Option("--anew", help="Forget what was measured; else it goes on from there")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Few episodes and answers: is it alive?")] = False,
) -> None:
    """AURAS §6: Figures 5 and 10 to 16 with the embedded policies, and each claim beside ours.

    Examples:  rfm reproduce auras --figure 10 --out /tmp/auras   |   rfm reproduce auras --out docs/reproductions/auras
    """
    if figure not in (*FIGURES, "all"):
        raise ConfigurationError(f"there is no {figure!r}", key="--figure", fix=did_you_mean(figure, (*FIGURES, "all")))
    require_matplotlib()  # errors at the end of a long run are found at its beginning
    from lab.reproductions.auras import data as tables
    from lab.reproductions.auras import plots
    from lab.reproductions.auras.claims import claims_of
    from lab.reproductions.auras.measured import FILE, FRAMES, Measured, load, load_framed

    make_folder(out)
    results = Measured() if anew else load(out / FILE)
    results.framed = load_framed(out / FRAMES)
    laboratory = _laboratory(models or shipped("models"), QUICK_EPISODES if quick else episodes, noise, quick)
    _remember(results, QUICK_EPISODES if quick else episodes, noise, out / FILE)
    figures = FIGURES if figure == "all" else (figure,)
    try:
        _measure([point for name in figures for point in points_of(name)], results, laboratory, out / FILE)
    except KeyboardInterrupt:
        console.print("stopped; what was measured is kept, and the same command goes on from there")
    claims = claims_of(results)
    for name in figures:
        tables.write(name, results, out)
        plots.draw(name, results, out)
    tables.write_page(results, claims, out)
    console.print(claims_table(claims))
    console.print(f"data and plots: {out}")


def _laboratory(models: Path, episodes: int, noise: float, quick: bool) -> Laboratory:
    """Return the experiment runner. Raises: `ConfigurationError` without PyTorch or Meta-World."""
    try:
        from lab.reproductions.auras.laboratory import Effort, Laboratory
    except ImportError as error:
        fix = "pip install 'ros2-rfm-serving[torch,metaworld]'"
        raise ConfigurationError(f"this reproduction needs {error.name}", fix=fix) from None
    answers, seconds, rounds = (8, 0.1, 1) if quick else (24, 0.6, 3)
    return Laboratory(models, Effort(episodes=episodes, answers=answers, seconds=seconds, rounds=rounds, noise=noise))


def _remember(results: Measured, episodes: int, noise: float, file: Path) -> None:
    """Record the parameters. Raises: `ConfigurationError` when the present measurements have other ones."""
    own = {"episodes": str(episodes), "noise": f"{noise:g}"}
    if results.parameters and results.parameters != own:
        raise ConfigurationError(f"was measured with {results.parameters}, not {own}", file=str(file), fix=ANEW)
    results.parameters = own


def _machine(results: Measured, file: Path) -> dict[str, str]:
    """Return the machine and its load for timings. Raises: `ConfigurationError` when present ones are from another machine."""
    if results.timings and (theirs := results.machine.get("processor")) != processor():
        raise ConfigurationError(f"was timed on {theirs}, not {processor()}", file=str(file), fix=ANEW)
    return this_machine()


def _measure(points: Iterable[Point], results: Measured, laboratory: Laboratory, file: Path) -> None:
    """Measure timings first, then episodes, with a progress bar on stderr. Each result is saved at once."""
    from lab.reproductions.auras.measured import missing, save

    timed, run = missing(results, list(points))
    results.machine = _machine(results, file) if timed else results.machine
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(timed) + len(run))
        for point in timed:
            progress.update(bar, description=f"timing {point}")
            results.timings[str(point)] = laboratory.time(point, results)
            save(results, file)
            progress.advance(bar)
        for point in run:
            progress.update(bar, description=f"episodes of {point}")
            results.successes[str(point)] = laboratory.run(point, results)
            save(results, file)
            progress.advance(bar)
