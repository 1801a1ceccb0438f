"""A mutant whose text is gone tests nothing, and nobody would know before the next `make mutants`."""

from __future__ import annotations

from pathlib import Path

import pytest

from test.mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_text_occurs_once_and_its_tests_are_there(mutant: Mutant) -> None:
    source = (ROOT / "ros2_rfm_serving" / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1 and mutant.new != mutant.old
    assert all((ROOT / path).exists() for path in mutant.tests)
