"""A verb is imported when it is asked for, and not before."""

from __future__ import annotations

import typer
from typer.testing import CliRunner

from ros2_rfm_serving.cli.verbs import verbs_app

HERE = __name__
inner = verbs_app({"say": f"{HERE}:say", "gone": "no_such_module:verb"}, help="Inner.")
app = verbs_app({"say": f"{HERE}:say", "inner": f"{HERE}:inner", "gone": "no_such_module:verb"}, help="Outer.")


def say(word: str, times: int = 1) -> None:
    """Says it."""
    typer.echo(word * times)


def test_what_is_not_asked_for_is_not_imported() -> None:
    assert CliRunner().invoke(app, ["say", "ho", "--times", "3"]).stdout == "hohoho\n"
    assert CliRunner().invoke(app, ["inner", "say", "ho"]).stdout == "ho\n"
    assert isinstance(CliRunner().invoke(app, ["gone"]).exception, ModuleNotFoundError)


def test_help_and_the_nearest_word_know_every_verb() -> None:
    whole = verbs_app({"say": f"{HERE}:say", "bench": "ros2_rfm_serving.cli.bench:app"}, help="Outer.")
    told = CliRunner().invoke(whole, ["--help"]).stdout
    assert told.index("Says it.") < told.index("Measurements, side by side in one run.")
    assert "Did you mean 'bench'" in CliRunner().invoke(whole, ["bnech"]).output
