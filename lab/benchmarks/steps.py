"""`rfm bench steps`: duration of a solver step by number of rows, traced or in plain PyTorch, and shares of its operators."""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from lab.benchmarks.console import JsonFile, console
from ros2_rfm_serving.operate.engines import load_engine

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.base import Engine, Stepping

KINDS = {
    "matrices": ("mm", "linear", "matmul"),
    "attention": ("attention", "softmax"),
    "GELU, norms and modulation": ("gelu", "silu", "norm", "mul", "add", "sub", "div"),
}
"""Kind of PyTorch's operators -> parts of their names; the first match counts."""
_ROWS = count(-1, -1)


def steps(
    model: Annotated[str, typer.Option(help="Of the catalogue: an embedded policy with solver steps")] = "rfm/metaworld-diffusion",
    rows: Annotated[str, typer.Option(help="That go on together; operators are those of the last one")] = "1,20",
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repetitions: their medians are reported")] = 7,
    json_file: JsonFile = None,
) -> None:
    """CPU time of a solver step on one thread by number of rows, traced and not, and the share of each kind of operator.

    Example:  rfm bench steps --rows 1,8,20
    """
    import torch

    torch.set_num_threads(1)
    sizes = [int(size) for size in rows.split(",")]
    engines = {
        way: load_engine(model, 1, options={"trace": way == "traced", "max_rows": max(sizes)})
        for way in ("as PyTorch runs it", "traced")
    }
    for engine in engines.values():
        engine.prepare(min(max(sizes), engine.max_batch_size))
        engine.warm_up()
    taken_ms: dict[str, dict[int, list[float]]] = {way: {size: [] for size in sizes} for way in engines}
    for _ in range(rounds):
        for way, engine in engines.items():
            for size in sizes:
                taken_ms[way][size].append(_step_ms(engine, size))
    shares = _shares(engines["as PyTorch runs it"], sizes[-1])
    table = Table("", *(f"{size} rows" for size in sizes), title=f"{model}: ms of CPU time per solver step, one thread")
    for way, by_size in taken_ms.items():
        table.add_row(
            way, *(f"{median(by_size[size]):.2f} ({min(by_size[size]):.2f} - {max(by_size[size]):.2f})" for size in sizes)
        )
    console.print(table)
    told = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items())
    console.print(f"of a step of {sizes[-1]} rows, as PyTorch runs it: {told}")
    if json_file:
        json_file.write_text(json.dumps({"model": model, "ms": taken_ms, "shares": shares}, indent=1) + "\n", encoding="utf-8")


def _entered(engine: Engine, size: int) -> tuple[Stepping, list[int], int]:
    """Return the engine with rows in flight, their numbers, and the steps that they take."""
    from ros2_rfm_serving.engines.base import stepping
    from ros2_rfm_serving.engines.warmup import warmup_request

    stepped, blank = stepping(engine), warmup_request(engine.contract)
    numbers = [next(_ROWS) for _ in range(size)]
    for error in stepped.enter(dict.fromkeys(numbers, blank)).values():
        raise error
    return stepped, numbers, stepped.num_iterations(blank)


def _step_ms(engine: Engine, size: int) -> float:
    stepped, numbers, num_turns = _entered(engine, size)
    began_s = time.thread_time()
    for _ in range(num_turns):
        stepped.iterate(numbers)
    return 1e3 * (time.thread_time() - began_s) / num_turns


def _shares(engine: Engine, size: int) -> dict[str, float]:
    """Return the shares of the operators' own time."""
    from torch.profiler import ProfilerActivity, profile

    stepped, numbers, num_turns = _entered(engine, size)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(num_turns):
            stepped.iterate(numbers)
    times_us = Counter[str]()
    for operator in found.key_averages():
        times_us[_kind(operator.key)] += operator.self_cpu_time_total
    return {kind: time_us / times_us.total() for kind, time_us in times_us.most_common()}


def _kind(operator: str) -> str:
    return next((kind for kind, names in KINDS.items() if any(name in operator for name in names)), "others")
