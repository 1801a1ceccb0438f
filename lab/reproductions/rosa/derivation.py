"""`rfm reproduce rosa --figure laws`: the paper's figures by the shipped laws and by the best fit, and the binding figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from lab.reproductions.claims import Claim
from lab.reproductions.files import write_rows
from lab.reproductions.rosa.bindings import bindings_of
from lab.reproductions.rosa.crowd import crowd, shipped_laws
from lab.reproductions.rosa.fit import deviations, fitted, left_out, rounded
from lab.reproductions.rosa.laws import Laws
from lab.reproductions.rosa.runs import Inputs, Setting

BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Derived:
    shipped: Laws
    """Laws of the catalogue."""
    found: Laws
    """Fitted laws, rounded as in a catalogue."""
    without: Mapping[str, float]
    """Binding figure -> the worst deviation of laws that need not satisfy it."""


def derive(inputs: Inputs, setting: Setting, starts: Iterable[tuple[float, ...]]) -> Derived:
    """Fit the laws. inputs: P4."""
    shipped = shipped_laws(inputs)
    fit = fitted(lambda laws: crowd(laws, inputs, setting), starts)
    return Derived(shipped=replace(shipped, crowd=crowd(shipped, inputs, setting)), found=rounded(fit.laws), without=left_out(fit))


def write(derived: Derived, out: Path) -> None:
    write_rows(out / "laws.csv", (_row(*pair) for pair in _pairs(derived)))
    write_rows(out / "coefficients.csv", _coefficient_rows(derived))


def table(derived: Derived) -> Table:
    made = Table(title="what the paper's figures say of the laws", title_justify="left")
    for heading in ("figure", "claim", "rule"):
        made.add_column(heading)
    for heading in ("paper", "shipped", "fitted"):
        made.add_column(heading, justify="right")
    for shipped, found in _pairs(derived):
        each = (f"{claim.ours:.4g}{'' if claim.holds else ' (no)'}" for claim in (shipped, found))
        made.add_row(shipped.figure, shipped.text, shipped.rule.value, f"{shipped.paper:g} {shipped.unit}", *each)
    return made


def lines(derived: Derived) -> Iterator[str]:
    for row in _coefficient_rows(derived):
        yield f"{row['law']}: {row['coefficient']} {row['fitted']:g} (shipped {row['shipped']:g})"
    shipped, found = (100 * max(abs(deviations(laws))) for laws in (derived.shipped, derived.found))
    yield f"farthest from the paper: {found:.1f} % (shipped: {shipped:.1f} %)"
    for text, worst in derived.without.items():
        yield f"without {text!r}: {100 * worst:.1f} %"


def _pairs(derived: Derived) -> Iterator[tuple[Claim, Claim]]:
    return zip(bindings_of(derived.shipped), bindings_of(derived.found), strict=True)


def _row(shipped: Claim, found: Claim) -> dict[str, Any]:
    return {
        "figure": shipped.figure,
        "claim": shipped.text,
        "unit": shipped.unit,
        "rule": shipped.rule.value,
        "paper": shipped.paper,
        "shipped": shipped.ours,
        "shipped_holds": shipped.holds,
        "fitted": found.ours,
        "fitted_holds": found.holds,
    }


def _coefficient_rows(derived: Derived) -> Iterator[dict[str, Any]]:
    for shipped, found in zip(coefficients_of(derived.shipped), coefficients_of(derived.found), strict=True):
        (law, name, value), (*_, other) = shipped, found
        yield {"law": law, "coefficient": name, "shipped": value, "fitted": other}


def coefficients_of(laws: Laws) -> Iterator[tuple[str, str, float]]:
    """Yield (law, coefficient, value)."""
    of = laws.system1
    yield "System 1", "base_ms", 1e3 * of.base_s
    yield "System 1", "per_row_ms", 1e3 * of.per_row_s
    yield "System 1", "extra_rows", of.wave.extra_rows
    for size in BATCHES:
        yield "System 1", f"batch of {size}, ms", 1e3 * laws.batch_s(size)
    for name, law in (("System 2 and monitor", laws.reasoning), ("safety", laws.checking)):
        yield name, "base_ms", 1e3 * law.base_s
        yield name, "per_request_ms", 1e3 * law.per_request_s
