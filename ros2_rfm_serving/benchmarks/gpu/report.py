"""`rfm bench gpu`: all that a machine with a GPU is asked, in pieces under ten minutes each, which resume."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ros2_rfm_serving.benchmarks.console import console

if TYPE_CHECKING:
    from ros2_rfm_serving.benchmarks.gpu.machine import Machine, Size
    from ros2_rfm_serving.benchmarks.gpu.pieces import Piece
    from ros2_rfm_serving.benchmarks.gpu.runner import Book, Outcome

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
    list_: Annotated[bool, typer.Option("--list", help="Names of the pieces, and what became of them")] = False,
    vllm_python: Annotated[str, typer.Option(metavar="PYTHON", help="An interpreter that has vLLM; default: this one")] = "",
    adopt: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Put the measured profile there, such as config/profiles, and end")
    ] = None,
) -> None:
    """Tests marked gpu, benchmarks of every architecture with random weights, and measured profiles with what they change.

    Stopped at any time (Ctrl-C), the same command goes on with the first piece that is not done. On a CPU, at toy size, every piece
    runs all the same: to see that it does, never for its figures.

    Example:  rfm bench gpu --device cpu --out /tmp/gpu --piece tests-graphs
    """
    from ros2_rfm_serving.benchmarks.gpu import runner
    from ros2_rfm_serving.benchmarks.gpu.machine import machine_of

    machine = machine_of(device, size)
    out = out or (OUT if machine.on_gpu else OUT / "cpu")
    chosen = _chosen(machine.size, piece or [], vllm_python)
    book = runner.Book(out, machine)
    if adopt:
        from ros2_rfm_serving.benchmarks.gpu.adopting import adopt as adopt_profile

        console.print(f"written: {adopt_profile(out, machine, adopt)}")
        return
    if list_:
        for one in chosen:
            found = book.outcome(one.name)
            console.print(f"{one.name:28} {found.state if found else '-'}", highlight=False)
        return
    _run(chosen, book, machine)


def _run(chosen: list[Piece], book: Book, machine: Machine) -> None:
    from ros2_rfm_serving.benchmarks.gpu import runner
    from ros2_rfm_serving.benchmarks.processes import told_to_end

    console.print(f"{machine.gpu} ({machine.device}), driver {machine.driver}, PyTorch {machine.torch}, {machine.size} size")
    shown, began_s = _Shown(len(chosen)), time.monotonic()
    try:
        with book.held(), told_to_end() as look:
            outcomes = runner.run(chosen, book, machine, shown, look)
    except KeyboardInterrupt:
        console.print(f"stopped; the same command goes on, with --out {shlex.quote(str(book.out))}")
        raise typer.Exit(INTERRUPTED) from None
    counts = {state: sum(outcome.state == state for outcome in outcomes) for state in runner.STATES}
    console.print(
        f"{', '.join(f'{count} {state}' for state, count in counts.items() if count)}, {time.monotonic() - began_s:.0f} s, "
        f"CPU {sum(outcome.cpu_s for outcome in outcomes):.0f} s; results: {book.out}",
        highlight=False,
    )
    if counts[runner.DONE] + counts[runner.SKIP] < len(outcomes):
        raise typer.Exit(1)


class _Shown:
    """A line per piece."""

    def __init__(self, number: int) -> None:
        self._number, self._at = number, 0

    def __call__(self, piece: Piece, outcome: Outcome | None) -> None:
        if outcome is None:
            console.print(f"[{self._at + 1}/{self._number}] {piece.name} ...", markup=False, highlight=False)
            return
        self._at += 1
        line = f"[{self._at}/{self._number}] {piece.name}: {outcome.state}, {outcome.seconds:.0f} s, CPU {outcome.cpu_s:.0f} s"
        said = "" if outcome.state == "done" else f": {outcome.said}"
        console.print(line + said, markup=False, highlight=False, soft_wrap=True)


def _chosen(size: Size, names: list[str], vllm_python: str) -> list[Piece]:
    from ros2_rfm_serving.benchmarks.gpu.pieces import pieces
    from ros2_rfm_serving.errors import ConfigurationError
    from ros2_rfm_serving.factory.yaml_source import did_you_mean

    known = {piece.name: piece for piece in pieces(size, vllm_python)}
    for name in names:
        if name not in known:
            raise ConfigurationError(f"there is no {name!r}", key="--piece", fix=did_you_mean(name, list(known)))
    return [piece for name, piece in known.items() if not names or name in names]
