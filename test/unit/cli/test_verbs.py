"""A verb is imported when it is asked for, and not before."""

from __future__ import annotations

import subprocess
import sys

import typer
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import GROUPS, VERBS
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


def test_help_of_rfm_has_every_verb_once_under_a_title_in_one_line() -> None:
    grouped = [name for lines in GROUPS.values() for name in lines]
    assert sorted(grouped) == sorted(VERBS)
    shown = CliRunner().invoke(verbs_app(VERBS, help="Outer.", groups=GROUPS), ["--help"], env={"COLUMNS": "80"}).stdout
    for title, lines in GROUPS.items():
        assert title in shown
        for name, line in lines.items():
            assert any(row.split()[1:2] == [name] and line in row for row in shown.splitlines()), f"the line of {name} is cut"


def test_help_of_rfm_imports_no_verb() -> None:
    code = "import sys; from ros2_rfm_serving.cli.main import app; sys.argv = ['rfm', '--help']; app(standalone_mode=False)"
    code += "; print([name for name in sys.modules if name == 'numpy' or name.startswith('ros2_rfm_serving.cli.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['ros2_rfm_serving.cli.verbs', 'ros2_rfm_serving.cli.main']"


def test_a_verb_with_a_placeholder_still_runs_as_itself() -> None:
    app = verbs_app({"say": f"{HERE}:say"}, help="Outer.", groups={"Words": {"say": "Print a word"}})
    assert "Print a word" in CliRunner().invoke(app, ["--help"]).stdout
    assert CliRunner().invoke(app, ["say", "ho", "--times", "2"]).stdout == "hoho\n"
    assert "Says it." in CliRunner().invoke(app, ["say", "--help"]).stdout
    assert "Did you mean 'say'" in CliRunner().invoke(app, ["sya"]).output
