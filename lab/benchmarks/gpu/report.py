"""`rfm bench gpu`: measurements of a machine with a GPU, in pieces under ten minutes each, which resume on any machine like it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.benchmarks.console import console

if TYPE_CHECKING:
    from lab.benchmarks.gpu.budget import Budget
    from lab.benchmarks.gpu.machine import Machine, Size
    from lab.benchmarks.gpu.pieces import Piece
    from lab.benchmarks.gpu.results_file import Results, Saver
    from lab.benchmarks.gpu.runner import Book, Outcome

INTERRUPTED = 130
OUT = Path("build/gpu")


def gpu(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1; auto: the first GPU, or the CPU")] = "auto",
    size: Annotated[str, typer.Option(help="Of networks: full or toy; by default full on a GPU, toy on a CPU")] = "",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Results (CSV), logs, what is done; default: build/gpu, of a CPU build/gpu/cpu"),
    ] = None,
    piece: Annotated[list[str] | None, typer.Option(metavar="NAME", help="This one alone; may be repeated")] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="For all pieces: none is begun that cannot end in time; default: no limit")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(metavar="FILE.tar.gz", help="All results in one file, written anew after every piece")
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="FILE.tar.gz", help="Go on from such a file, in a folder that is empty")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Names of the pieces, and what became of them")] = False,
    vllm_python: Annotated[str, typer.Option(metavar="PYTHON", help="An interpreter that has vLLM; default: this one")] = "",
    adopt: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Put the measured profile there, such as config/profiles, and end")
    ] = None,
) -> None:
    """Tests marked gpu, ratios with goals, benchmarks of every architecture with random weights, and measured profiles.

    Stopped at any time (Ctrl-C), the same command goes on with the first piece that is not done. On a CPU, at toy size, every piece
    runs all the same: to see that it does, never for its figures. It needs no ROS. Only
    the pieces `plan` and `rosa` need OR-Tools; they compute with results of any machine.

    Example:  rfm bench gpu --device cpu --out /tmp/gpu --piece tests-graphs
    """
    from lab.benchmarks.gpu import results_file, runner
    from lab.benchmarks.gpu.budget import Budget

    budget = Budget.of(minutes)
    results = results_file.read(from_) if from_ else None
    machine = _machine(device, size, _recorded(results, out) if _computes_only(piece or []) or adopt or list_ else None)
    out = out or (OUT if machine.on_gpu else OUT / "cpu")
    chosen = _chosen(machine.size, piece or [], vllm_python)
    if results:
        results_file.unpack(results, out, machine)
    book = runner.Book(out, machine)
    if adopt:
        from lab.benchmarks.gpu.adopting import adopt as adopt_profile

        console.print(f"written: {adopt_profile(out, machine, adopt)}")
        return
    if list_:
        _list(chosen, book)
        return
    _run(chosen, book, budget, results_file.Saver(out, bundle) if bundle else None)


def _computes_only(names: Sequence[str]) -> bool:
    """Return whether no piece measures: results of another machine are then valid."""
    from lab.benchmarks.gpu.child import ELSEWHERE

    return bool(names) and set(names) <= set(ELSEWHERE)


def _recorded(results: Results | None, out: Path | None) -> Machine | None:
    from lab.benchmarks.gpu.runner import machine_in

    return results.machine if results else machine_in(out) if out else None


def _machine(device: str, size: str, recorded: Machine | None) -> Machine:
    from lab.benchmarks.gpu.machine import machine_of

    return recorded or machine_of(device, size)


def _list(chosen: Sequence[Piece], book: Book) -> None:
    for one in chosen:
        found = book.outcome(one.name)
        console.print(f"{one.name:28} {found.state if found else '-'}", highlight=False)


def _run(chosen: list[Piece], book: Book, budget: Budget, saver: Saver | None) -> None:
    from lab.benchmarks.gpu import runner
    from lab.benchmarks.processes import told_to_end

    machine = book.machine
    console.print(f"{machine.gpu} ({machine.device}), driver {machine.driver}, PyTorch {machine.torch}, {machine.size} size")
    began_s = time.monotonic()
    try:
        with book.held(), told_to_end() as look:
            shown = _Shown(chosen, book, saver)
            outcomes = runner.run(chosen, book, machine, shown, shown.looking(look), budget)
    except KeyboardInterrupt:
        if saver:
            saver.save()
        console.print(f"stopped; the same command goes on, with --out {shlex.quote(str(book.out))}")
        raise typer.Exit(INTERRUPTED) from None
    if saver:
        saver.save()
    counts = {state: sum(outcome.state == state for outcome in outcomes) for state in runner.STATES}
    console.print(
        f"{', '.join(f'{count} {state}' for state, count in counts.items() if count)}, {time.monotonic() - began_s:.0f} s, "
        f"CPU {sum(outcome.cpu_s for outcome in outcomes):.0f} s; results: {book.out}{f', {saver.file}' if saver else ''}",
        highlight=False,
    )
    if any(counts[state] for state in (runner.FAILED, runner.HUNG, runner.WAITS)):
        raise typer.Exit(1)


class _Shown:
    """Progress: a line per piece, and updates of the page of ratios and of the results file."""

    def __init__(self, chosen: Sequence[Piece], book: Book, saver: Saver | None) -> None:
        """Start the results file. Raises: `ConfigurationError` when it cannot be written."""
        self._chosen, self._book, self._saver, self._at = chosen, book, saver, 0
        self._problem = ""
        if saver:
            saver.save()

    def __call__(self, piece: Piece, outcome: Outcome | None) -> None:
        from lab.benchmarks.gpu.runner import expected_s

        place = f"[{self._at + 1}/{len(self._chosen)}] {piece.name}"
        if outcome is None:
            text = f"{place}, {expected_s(piece, self._book, self._chosen):.0f} s expected ..."
            console.print(text, markup=False, highlight=False)
            return
        self._at += 1
        line = f"{place}: {outcome.state}, {outcome.seconds:.0f} s, CPU {outcome.cpu_s:.0f} s"
        said = "" if outcome.state == "done" else f": {outcome.said}"
        console.print(line + said, markup=False, highlight=False, soft_wrap=True)
        self._keep()

    def looking(self, look: Callable[[], None]) -> Callable[[], None]:
        """Return the function that is called repeatedly while a piece runs."""
        saver = self._saver
        if saver is None:
            return look

        def both() -> None:
            look()
            self._tried(saver.save_if_changed)

        return both

    def _keep(self) -> None:
        from lab.benchmarks.gpu import goals

        self._tried(lambda: goals.write_page(self._book.out, self._book.machine))
        if self._saver:
            self._tried(self._saver.save)

    def _tried(self, keep: Callable[[], None]) -> None:
        """Try to save; a failure does not end the run, because the next piece and the end of the run try again."""
        from ros2_rfm_serving.errors import ConfigurationError

        try:
            keep()
        except (ConfigurationError, OSError) as error:
            if str(error) != self._problem:
                console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
            self._problem = str(error)


def _chosen(size: Size, names: list[str], vllm_python: str) -> list[Piece]:
    from lab.benchmarks.gpu.pieces import pieces
    from ros2_rfm_serving.errors import ConfigurationError
    from ros2_rfm_serving.factory.yaml_source import did_you_mean

    known = {piece.name: piece for piece in pieces(size, vllm_python)}
    for name in names:
        if name not in known:
            raise ConfigurationError(f"there is no {name!r}", key="--piece", fix=did_you_mean(name, list(known)))
    return [piece for name, piece in known.items() if not names or name in names]
