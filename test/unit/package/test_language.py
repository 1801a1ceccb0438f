"""Names and docstrings follow docs/glossary.md: what does not yet is counted per room, and the counts only fall."""

from __future__ import annotations

from pathlib import Path

import pytest

from test.language import table
from test.language.measures import GLOSSARY, Found, Measures, banned_words, is_fragment, longest_chain, measure
from test.language.source import words_of


def measures(**given: object) -> Measures:
    empty: dict[str, object] = {"banned": [], "fragments": [], "neighbours": [], "modules": {"robot": 2}, "lines": {"robot": 900}}
    return Measures(**{**empty, "num_docstrings": 9, **given})  # type: ignore[arg-type]


def test_no_count_rises() -> None:
    problems = table.rises(table.read(), measure())
    assert not problems, "\n".join(problems)


def test_the_table_has_followed_every_count_that_fell() -> None:
    found = measure()
    assert table.rises(table.read(), found) or not table.is_stale(table.read(), found), f"counts have fallen: {table.UPDATE}"


def test_every_banned_word_has_a_replacement(repository: Path) -> None:
    banned = banned_words(repository / GLOSSARY)
    assert len(banned) > 50 and all(use.strip() for use in banned.values())
    replaced = {word for use in banned.values() for name in use.split("`")[1::2] for word in words_of(name)}
    assert not replaced & banned.keys(), "a replacement is itself banned"


@pytest.mark.parametrize(
    "name, words",
    [("RobotWord", ["robot", "word"]), ("told_s", ["told", "s"]), ("_hear", ["hear"]), ("SLOGate2", ["slo", "gate"])],
)
def test_an_identifier_has_words(name: str, words: list[str]) -> None:
    assert words_of(name) == words


@pytest.mark.parametrize(
    "docstring, fragment",
    [
        ("Return the load of a server.", False),
        ("State of the active schedule.", False),
        ("A request in flight.", False),
        ("Of its bundle.", True),
        ("Whoever asks shows who it is.", True),
        ("Raises: `ConfigurationError`.", True),
        ("`Bench` of the tuner.", False),
        ("[n, S]", False),
    ],
)
def test_a_fragment_is_known_by_its_first_word(docstring: str, fragment: bool) -> None:
    assert is_fragment(docstring) is fragment


def test_a_chain_of_imports_has_as_many_floors_as_modules() -> None:
    assert longest_chain({"a": {"b", "c"}, "b": {"c"}, "c": {"elsewhere"}, "d": set()}) == 3


def test_a_rise_names_the_places_and_a_fall_asks_for_an_update(tmp_path: Path) -> None:
    one = [Found(room="robot", place="robot/x.py:3: `told` has 'told': `publish`")]
    kept = table.table_of(measures(banned=one, twice={"Row": ["a:1", "b:2"]}))
    table.write(kept, tmp_path / "counts.yaml")
    assert table.read(tmp_path / "counts.yaml") == kept and not table.is_stale(kept, measures(banned=one, twice={"Row": []}))
    risen = table.rises(kept, measures(banned=one * 2, modules={"robot": 3}, twice={"Host": ["a:1", "c:9"]}, lines={"robot": 1001}))
    assert len(risen) == 4 and "robot/x.py:3" in "\n".join(risen) and "c:9" in "\n".join(risen)
    assert not table.rises(kept, measures()) and table.is_stale(kept, measures())
