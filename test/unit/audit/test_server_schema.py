"""config/audit/schema.json and docs/audit.md say what servers and schedulers write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ros2_rfm_serving.audit.values import SERVER_EVENTS
from test.unit.audit.test_scheduler_replay import lived  # noqa: F401 (a fixture)
from test.unit.audit.test_server_replay import of_a_program, of_horizons, of_text


@pytest.fixture(scope="module")
def schema(repository: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((repository / "config" / "audit" / "schema.json").read_text())
    return found


def check(schema: dict[str, Any], role: str, records: list[dict[str, Any]]) -> set[str]:
    """Which kinds are of that role alone."""
    common = schema["$defs"]["record"]["properties"].keys()
    kinds = set()
    for record in records:
        own = f"{role}.{record['kind']}"
        name = own if own in schema["$defs"] else record["kind"]
        Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]}).validate(record)
        assert record.keys() <= common | schema["$defs"][name]["properties"].keys()
        kinds |= {own} & schema["$defs"].keys()
    return kinds


def test_a_servers_records_are_as_the_schema_says(schema: dict[str, Any]) -> None:
    records = [*of_a_program(3, 60), *of_a_program(8, 60), *of_horizons("confidence"), *of_text()]
    assert check(schema, "server", records) == {f"server.{kind}" for kind in ("event", "request", "batch", "reply")}
    answers = [record for record in records if record["kind"] == "reply"]
    assert any(one["event"]["answer"] and one["event"]["answer"]["verdict"] for one in answers)
    assert any(one.get("updates_digest") for one in answers)


def test_a_schedulers_records_are_as_the_schema_says(schema: dict[str, Any], lived: list[dict[str, Any]]) -> None:  # noqa: F811
    assert check(schema, "scheduler", lived) == {"scheduler.plan", "scheduler.operator_command"}


def test_the_document_names_what_they_are_told(schema: dict[str, Any], repository: Path) -> None:
    words = set(re.findall(r"`([\w.]+)`", (repository / "docs" / "audit.md").read_text()))
    named = set()
    for kind in ("event", "request", "batch", "reply"):
        names = schema["$defs"][f"server.{kind}"]["properties"]["event"]["properties"]["~"]
        named |= set(names.get("enum", [names.get("const")]))
    assert named == SERVER_EVENTS.keys() <= words
    keys = {key for name, of in schema["$defs"].items() if name.startswith("server.") for key in of.get("properties", ())}
    assert keys - {"~"} <= words
