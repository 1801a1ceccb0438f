"""`rfm check`, and every way to start a factory, refuse a task whose policy was demonstrated at another rate, whichever file says
that, unless it is accepted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ros2_rfm_serving.cli.check import check
from ros2_rfm_serving.cli.deploy import deploy
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, CatalogueEntry, load_factory
from ros2_rfm_serving.operate.rates import check_rates, demonstrated_hz
from ros2_rfm_serving.operate.run import run_factory
from ros2_rfm_serving.operate.running import Options


def checked(folder: Path, rate_hz: float, entry: dict[str, Any], execution: dict[str, Any] | None = None, **robot: Any) -> None:
    """Check a factory of one real robot of that rate, whose own file is `robot.yaml`."""
    parameters = {"control_rate_hz": rate_hz, "command_type": "position", **robot}
    (folder / "robot.yaml").write_text(yaml.safe_dump({"/**": {"ros__parameters": parameters}}), encoding="utf-8")
    declared = {
        "server_cluster": {"num_servers": 1, "gpu_type": "GPU"},
        "robot_fleet": [{"task": "pick", "num_robots": 1}],
        "pick": {
            "pipeline": {"action_period_ms": 400},
            "components": {"system1": {"model": "policy"}},
            "robot": "robot.yaml",
            "execution": execution or {},
        },
    }
    (folder / "factory.yaml").write_text(yaml.safe_dump(declared), encoding="utf-8")
    check_rates(load_factory(folder / "factory.yaml"), Catalogue(models={"policy": CatalogueEntry(**entry)}))


def entries(folder: Path, rate_hz: float) -> list[dict[str, Any]]:
    """Catalogue entries that say the rate, each in a file of its own kind."""
    promise = {"action_names": ["j1", "grip"], "control_rate_hz": rate_hz}
    kinds = {
        "embedded": {"kind": "flow_policy", "network": promise},
        "imported": {"kind": "architecture", "network": {"chunk_length": 8}, "contract": promise},
    }
    for name, config in kinds.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "data" / "meta").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "meta" / "info.json").write_text(json.dumps({"fps": rate_hz}), encoding="utf-8")
    return [
        *({"engine": "bundle", "bundle": str(folder / name)} for name in kinds),
        {"engine": "lerobot", "options": {"path": "a/b", "dataset": str(folder / "data")}},
        {"engine": "remote", "options": {"control_rate_hz": rate_hz}},
    ]


@pytest.mark.parametrize("kind", range(4))
def test_another_rate_is_refused_with_file_key_value_and_fix(kind: int, tmp_path: Path) -> None:
    entry = entries(tmp_path, 20.0)[kind]
    assert demonstrated_hz(CatalogueEntry(**entry)) == 20.0
    with pytest.raises(
        ConfigurationError, match=r"policy: the robot runs at 30 Hz, the demonstrations ran at 20 Hz: .* 1\.5 times"
    ) as caught:
        checked(tmp_path, 30.0, entry)
    error = caught.value
    assert error.file == str(tmp_path / "robot.yaml") and error.key == "control_rate_hz"
    assert "control_rate_hz: 20" in error.fix and "`pick.execution.accept_other_rate: true` accepts it" in error.fix


@pytest.mark.parametrize(("rate_hz", "parts"), [(40.0, 2), (60.0, 3), (500.0, 25)])
def test_interpolation_bridges_a_multiple_and_is_named_as_the_fix(rate_hz: float, parts: int, tmp_path: Path) -> None:
    entry = entries(tmp_path, 20.0)[3]
    with pytest.raises(ConfigurationError) as caught:
        checked(tmp_path, rate_hz, entry)
    assert caught.value.fix.startswith(f"set `interpolation: {parts}`")
    checked(tmp_path, rate_hz, entry, interpolation=parts)
    with pytest.raises(ConfigurationError) as caught:
        checked(tmp_path, rate_hz, entry, command_type="delta")
    assert "interpolation" not in caught.value.fix, "there is nothing between two displacements"


@pytest.mark.parametrize(
    ("types", "interpolates"),
    [
        ({"command_type": "position", "command_types": ["grip=delta"]}, False),
        ({"command_type": "delta", "command_types": ["grip=gripper"]}, False),
        ({"command_type": "delta", "command_types": ["j*=position", "grip=gripper"]}, True),
        ({"command_types": ["velocity", "gripper"]}, True),
    ],
)
def test_the_fix_knows_types_per_column(types: dict[str, Any], interpolates: bool, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        checked(tmp_path, 40.0, entries(tmp_path, 20.0)[3], action_names=["j1", "grip"], **types)
    assert ("interpolation" in caught.value.fix) is interpolates


def test_it_is_accepted_by_the_task_or_by_the_robots_file(tmp_path: Path) -> None:
    entry = entries(tmp_path, 50.0)[0]
    checked(tmp_path, 30.0, entry, {"accept_other_rate": True})
    checked(tmp_path, 30.0, entry, accept_other_rate=True)
    with pytest.raises(ConfigurationError, match="unknown key") as caught:
        checked(tmp_path, 30.0, entry, {"accept_other_rates": True})
    assert "accept_other_rate" in caught.value.fix


@pytest.mark.parametrize("rate_hz", [19.5, 20.0, 20.9])
def test_a_rate_that_is_nearly_the_same_or_not_known_is_none_of_its_business(rate_hz: float, tmp_path: Path) -> None:
    for entry in (*entries(tmp_path, 20.0), *entries(tmp_path, 0.0), {"engine": "bundle", "bundle": "no_such_folder"}):
        checked(tmp_path, rate_hz, entry)


@pytest.mark.parametrize("way", ["check", "up", "deploy"])
def test_every_way_to_start_a_factory_asks(way: str, repository: Path, tmp_path: Path) -> None:
    profiles = other_rate(repository, tmp_path)
    file = repository / "config" / "factory_quickstart.yaml"
    with pytest.raises(ConfigurationError, match=r"rfm/metaworld-flow: the robot runs at 20 Hz, the demonstrations ran at 30 Hz"):
        if way == "check":
            check(file, profiles)
        elif way == "up":
            run_factory(load_factory(file), Options(logs=tmp_path, profiles=profiles))
        else:
            deploy(tmp_path / "made", file, systemd=True, profiles=profiles)


def other_rate(repository: Path, folder: Path) -> Path:
    """Return profiles beside which a catalogue says that the quickstart's policy was demonstrated at 30 Hz."""
    made = folder / "profiles"
    shutil.copytree(repository / "config" / "profiles", made)
    text = (made / "models.yaml").read_text(encoding="utf-8")
    bundle = repository / "models" / "metaworld_flow"
    changed = text.replace("bundle: metaworld_flow\n", f"bundle: {bundle}\n    options: {{control_rate_hz: 30}}\n")
    assert changed != text
    (made / "models.yaml").write_text(changed, encoding="utf-8")
    return made
