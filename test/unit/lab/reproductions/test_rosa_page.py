"""ROSA's page has the figures of its data, and no others."""

from __future__ import annotations

import pytest

from test.unit.lab.reproductions.rosa_page import SHIPPED, claims, lines, rows

ANEW = "rfm reproduce rosa --out docs/reproductions/rosa; python -m test.unit.lab.reproductions.rosa_page"


@pytest.fixture(scope="module")
def page() -> list[str]:
    return (SHIPPED / "README.md").read_text().splitlines()


def test_its_tables_are_those_of_the_data(page: list[str]) -> None:
    missing = [line for line in lines() if line not in page]
    assert not missing, ANEW


def test_it_has_every_claim_once(page: list[str]) -> None:
    told = [line for line in page if line.startswith("| ") and line.endswith(("| yes |", "| **no** |"))]
    assert sorted(told) == sorted(claims()), ANEW


def test_it_counts_the_claims_that_hold(page: list[str]) -> None:
    all_of = rows("claims.csv")
    holding = sum(row["holds"] == "True" for row in all_of)
    assert f"Of {len(all_of)} claims {holding} hold" in "\n".join(page)
