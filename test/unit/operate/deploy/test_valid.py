"""Manifests are what the official schemas and `systemd-analyze` take, whatever the descriptor says."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from ros2_rfm_serving.operate.deploy.options import Kind
from test.unit.operate.deploy.cases import GPU_FACTORY, documents, gpu_factory, parsed, shipped_factory, unit, with_hosts, written

VERSIONS = ("1.29", kubernetes_validate.latest_version())
"""From when on a container may start before others and stay beside them, to the newest that there is a schema of."""
STRANGE = 'my factory,\n "100 %" of $HOME; é.yaml'
CASES: list[tuple[str, dict[str, Any]]] = [
    ("factory_quickstart.yaml", {}),
    ("packing.yaml", {"host_network": True, "door": 8000}),
    ("hosts.yaml", {"host_network": True}),
    (STRANGE, {"door": 8000, "namespace": "hall_b", "metrics": 9500}),
]
NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


def deployed(folder: Path, factory: str, kind: Kind, options: dict[str, Any]) -> dict[str, str]:
    if factory.startswith("factory_"):
        return written(shipped_factory(factory), kind, **options)
    text = with_hosts("{mode: server, partition: hall_3}") if factory == "hosts.yaml" else GPU_FACTORY
    return written(gpu_factory(folder, factory, text), kind, **options)


@pytest.mark.parametrize(("factory", "options"), CASES)
def test_kubernetes_takes_them(tmp_path: Path, factory: str, options: dict[str, Any]) -> None:
    made = documents(deployed(tmp_path, factory, Kind.KUBERNETES, options))
    alike = {(one["kind"], one["metadata"].get("labels", {}).get("app.kubernetes.io/component")): one for one in made}
    for document, version in itertools.product(alike.values(), VERSIONS):
        assert kubernetes_validate.validate(document, version, strict=True)
    for document in made:
        assert all(
            re.fullmatch(NAME, name) for name in (document["metadata"]["name"], *document["metadata"].get("labels", {}).values())
        )
        assert all(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) for key in document.get("data", {}))
    assert len({(one["kind"], one["metadata"]["name"]) for one in made}) == len(made)


def test_the_schema_would_notice(tmp_path: Path) -> None:
    """What is validated is not nothing."""
    made = next(d for d in documents(written(gpu_factory(tmp_path), Kind.KUBERNETES)) if d["kind"] == "Deployment")
    made = json.loads(json.dumps(made))
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = "35s"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(made, VERSIONS[1], strict=True)


@pytest.mark.parametrize(("factory", "options"), CASES)
def test_compose_takes_them(tmp_path: Path, factory: str, options: dict[str, Any]) -> None:
    schema = json.loads(Path(__file__).with_name("compose-spec.json").read_text())
    texts = [text for name, text in deployed(tmp_path, factory, Kind.COMPOSE, options).items() if name.endswith("compose.yaml")]
    for text in texts:
        jsonschema.Draft7Validator(schema).validate(parsed(text)[0])
        assert "$" not in text.partition("\n")[2].replace("$$", ""), "Compose would look for a variable"
    assert len(texts) == (3 if factory == "hosts.yaml" else 1)


@pytest.mark.parametrize("factory", [factory for factory, _ in CASES])
def test_systemd_takes_them(tmp_path: Path, factory: str) -> None:
    """With the executables of this environment, which it looks for. Where there is no systemd, by a reader of our own, aloud."""
    texts = deployed(tmp_path, factory, Kind.SYSTEMD, {"prefix": sys.prefix, "door": 8000})
    units = {Path(name).name: text for name, text in texts.items() if Path(name).parent.name == "units"}
    for name, text in units.items():
        (tmp_path / name).write_text(text)
        if name.endswith(".service"):
            told = unit(text)
            assert told["User"] == ["rfm_serving"] and told["ProtectSystem"] == ["strict"] and told["NoNewPrivileges"] == ["yes"]
            assert Path(told["ExecStart"][0].split()[0]).is_absolute()
    if not (analyze := shutil.which("systemd-analyze")):
        warnings.warn("no systemd-analyze here: the units were only read by a reader of our own", stacklevel=1)
        return
    command = [analyze, "verify", "--man=no", *(tmp_path / name for name in units)]
    verified = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert verified.returncode == 0 and not verified.stderr.strip(), verified.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_would_notice(tmp_path: Path) -> None:
    texts = written(gpu_factory(tmp_path / "f"), Kind.SYSTEMD, prefix=sys.prefix)
    text = texts["units/rfm-server_1.service"].replace("TimeoutStopSec=", "TimeoutStopSec=soon ")
    (tmp_path / "rfm-server_1.service").write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", tmp_path / "rfm-server_1.service"]
    verified = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert "Failed to parse time value" in verified.stderr
