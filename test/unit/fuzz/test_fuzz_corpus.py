"""Everything that reads what others wrote, with spoilt inputs, and with those that fuzzing kept (`make fuzz`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from test.fuzz.targets import NAMES, target
from test.unit.mutations import damaged

CORPUS = Path(__file__).resolve().parents[2] / "fuzz" / "corpus"
EXAMPLES = {"descriptor": 15, "catalogue": 15, "profiles": 40, "gateway": 60, "server": 50, "bag": 25}
QUICK = settings(derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", NAMES)
def test_kept_inputs_do_no_harm(name: str) -> None:
    check = target(name).check
    kept = sorted((CORPUS / name).iterdir())
    assert kept
    for file in kept:
        check(file.read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_spoilt_inputs_do_no_harm(name: str) -> None:
    seeds, check = target(name)
    settings(QUICK, max_examples=EXAMPLES.get(name, 100))(given(damaged(seeds()))(check))()


@settings(QUICK, max_examples=50)
@given(st.binary(max_size=300))
def test_a_server_survives_any_sequence_of_calls(program: bytes) -> None:
    target("server").check(program)


def test_the_corpus_stays_small() -> None:
    sizes = [file.stat().st_size for file in CORPUS.rglob("*") if file.is_file()]
    assert sum(sizes) < 200_000 and max(sizes) < 8_000
