"""config/audit/schema.json and docs/audit.md say what is written."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from ros2_rfm_serving.audit.recording.ledger import Ledger
from ros2_rfm_serving.audit.values import ROBOT_EVENTS
from test.unit.audit.recordings import all_records, recorded_world, run


@pytest.fixture(scope="module")
def schema(repository: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((repository / "config" / "audit" / "schema.json").read_text())
    Draft202012Validator.check_schema(found)
    return found


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """Of a robot to which much happens."""
    world, recorder = recorded_world(safety=0.3, monitor=0.3, system2=0.3)
    run(world, recorder, 8)
    world.brain.on_server_lost("home", world.now_s)
    world.brain.refused["bad_message"] += 1
    world.brain.prepared(world.brain.config)()
    run(world, recorder, 2)
    world.brain.pause(world.now_s)
    recorder.journal.note(
        "operator_command", world.now_s, lambda: {"command": "pause", "operator": "", "answer": "paused", "done": True}
    )
    run(world, recorder, 3)
    world.conditions.readings = "none"
    run(world, recorder, 1)
    world.brain.abort(world.now_s)
    world.brain.stop_command()
    run(world, recorder, 1)
    recorder.journal.close(world.now_s, "the end of the process")
    return all_records(recorder.pages)


def validator(schema: dict[str, Any], role: str, kind: str) -> Draft202012Validator:
    name = f"{role}.{kind}" if f"{role}.{kind}" in schema["$defs"] else kind
    assert name in schema["$defs"], f"config/audit/schema.json has no {name}"
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})


def test_every_record_is_as_the_schema_says(schema: dict[str, Any], records: list[dict[str, Any]]) -> None:
    kinds: Counter[str] = Counter()
    for record in records:
        validator(schema, "robot", record["kind"]).validate(record)
        kinds[record["kind"]] += 1
    known = {name.removeprefix("robot.") for name in schema["$defs"] if name.startswith("robot.")} - {"state"}
    assert known | {"begin", "snapshot", "sealed", "closed"} == set(kinds)


def test_the_schema_knows_every_key(schema: dict[str, Any], records: list[dict[str, Any]]) -> None:
    common = schema["$defs"]["record"]["properties"]
    for record in records:
        name = f"robot.{record['kind']}" if f"robot.{record['kind']}" in schema["$defs"] else record["kind"]
        assert record.keys() <= common.keys() | schema["$defs"][name]["properties"].keys()


def test_it_refuses_what_is_none(schema: dict[str, Any], records: list[dict[str, Any]]) -> None:
    tick = next(record for record in records if record["kind"] == "tick")
    for wrong in (
        {"event": {**tick["event"], "may_act": "yes"}},
        {"hash": "0"},
        {"n": -1},
        {"kind": "tock"},
        {"why": {"source": "magic"}},
    ):
        with pytest.raises(ValidationError):
            validator(schema, "robot", "tick").validate({**tick, **wrong})


def test_the_recorders_seals_are_as_the_schema_says(schema: dict[str, Any]) -> None:
    from test.unit.audit.test_verify import recording

    ledger = Ledger("one", 9, 0.0, {})
    for page in recording():
        ledger.hear(page, 1.0)
    page = ledger.page(9.0, 9.0, closed=True)
    assert page is not None
    (closed,) = [record for record in all_records([page]) if record["kind"] == "closed"]
    validator(schema, "recorder", "closed").validate(closed)


def test_the_document_names_every_kind_and_every_input(
    schema: dict[str, Any], records: list[dict[str, Any]], repository: Path
) -> None:
    words = set(re.findall(r"`([\w.]+)`", (repository / "docs" / "audit.md").read_text()))
    assert {record["kind"] for record in records} <= words
    assert ROBOT_EVENTS.keys() <= words
    assert ROBOT_EVENTS.keys() == set(schema["$defs"]["robot.event"]["properties"]["event"]["properties"]["~"]["enum"]) | {
        "ControlTick"
    }
