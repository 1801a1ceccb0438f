"""Claims of a paper, compared with measurements here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from rich.table import Table

T = TypeVar("T")


NEAR = 0.15
"""Relative difference up to which a figure counts as the paper's: Poisson against real arrivals, laws read from plots."""


class Rule(Enum):
    NEAR = f"within {NEAR:.0%}"
    AT_LEAST = "at least"
    AT_MOST = "at most"


@dataclass(frozen=True, kw_only=True)
class Claim:
    figure: str
    text: str
    unit: str
    rule: Rule
    paper: float
    """Figure of the paper, or the promised one."""
    ours: float

    @property
    def ratio(self) -> float:
        return self.ours / self.paper if self.paper else math.nan

    @property
    def holds(self) -> bool:
        if self.rule is Rule.NEAR:
            return abs(self.ours - self.paper) <= NEAR * abs(self.paper)
        return self.ours >= self.paper if self.rule is Rule.AT_LEAST else self.ours <= self.paper


def measured(rows: Iterable[tuple[str, str, str, Rule, float, Callable[[T], float]]], results: T) -> list[Claim]:
    """Evaluate rows of (figure, text, unit, rule, paper, ours); a row whose `ours` lacks a run is left out."""
    claims = []
    for figure, text, unit, rule, paper, ours in rows:
        try:
            value = ours(results)
        except KeyError:
            continue
        claims.append(Claim(figure=figure, text=text, unit=unit, rule=rule, paper=paper, ours=value))
    return claims


def claim_row(claim: Claim) -> dict[str, Any]:
    return {
        "figure": claim.figure,
        "claim": claim.text,
        "unit": claim.unit,
        "rule": claim.rule.value,
        "paper": claim.paper,
        "ours": claim.ours,
        "ratio": claim.ratio,
        "holds": claim.holds,
    }


def claims_table(claims: Sequence[Claim]) -> Table:
    table = Table(title=f"{sum(claim.holds for claim in claims)} of {len(claims)} claims hold", title_justify="left")
    for heading in ("figure", "claim", "rule"):
        table.add_column(heading)
    for heading in ("paper", "ours", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("holds")
    for claim in claims:
        ratio = f"{claim.ratio:.2f}" if claim.paper else "-"
        figures = (f"{claim.paper:g} {claim.unit}", f"{claim.ours:.4g} {claim.unit}", ratio)
        table.add_row(claim.figure, claim.text, claim.rule.value, *figures, "yes" if claim.holds else "no")
    return table
