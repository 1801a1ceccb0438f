"""`rfm bundle show` of a shipped bundle."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ros2_rfm_serving.cli import bundle
from ros2_rfm_serving.cli.main import app


def test_a_narrow_terminal_shows_hashes_to_the_last_digit(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, shown = str(repository / "models" / "metaworld_flow"), io.StringIO()
    told = json.loads(CliRunner().invoke(app, ["bundle", "show", folder, "--json"]).stdout)
    monkeypatch.setattr(bundle, "console", Console(width=80, file=shown))
    assert CliRunner().invoke(app, ["bundle", "show", folder]).exit_code == 0
    cells = [line.split("│")[2].strip() for line in shown.getvalue().splitlines() if line.startswith("│")]
    assert told["hash"] in re.sub(r"\s", "", "".join(cells)) and "…" not in shown.getvalue()
