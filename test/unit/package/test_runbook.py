"""docs/runbook.md, its tests and what `rfm why` knows are of the same causes."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from ros2_rfm_serving.monitoring.findings.causes import CAUSES
from test.operate.causes import MAKES
from test.operate.entries import entries
from test.system.mistakes import LIVE, SEPARATE_CAUSES

PARTS = ("**Symptom.**", "**Cause.**", "**Fix.**")
ALERT = re.compile(r"`(Rfm\w+)`")


def test_every_entry_has_its_test_and_its_rule_and_the_other_way_round() -> None:
    """A cause is in the runbook, or among the mistakes, each of which a test makes live."""
    headings = set(entries()) - {""}
    assert headings == set(MAKES)
    assert headings | {mistake.cause for mistake in LIVE.values()} | SEPARATE_CAUSES == {cause.name for cause in CAUSES}


def test_every_entry_says_what_is_seen_what_is_typed_and_what_mends_it() -> None:
    for heading, entry in entries().items():
        assert entry.command.startswith("rfm why"), heading
        if heading:
            assert all(part in entry.text for part in PARTS), heading
            assert re.match(rf"1\. {heading}(: |$)", entry.says[0]), entry.says


def test_the_runbook_is_found(repository: Path) -> None:
    for file in ("README.md", "docs/operate.md"):
        assert "runbook.md" in (repository / file).read_text(), file


def test_every_alert_is_in_the_table_of_alerts_and_no_page_names_another(repository: Path) -> None:
    rules = yaml.safe_load((repository / "config" / "prometheus" / "rules.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    rows = [line for line in (repository / "docs" / "operate.md").read_text().splitlines() if line.startswith("| `Rfm")]
    assert sorted(ALERT.findall("\n".join(row.split("|")[1] for row in rows))) == sorted(alerts)
    assert all(len(cells := row.split("|")) == 5 and all(cell.strip() for cell in cells[1:4]) for row in rows)
    for page in (repository / "docs").glob("*.md"):
        assert set(ALERT.findall(page.read_text())) <= alerts, page
