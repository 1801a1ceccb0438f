"""What `rfm check` knows of a model without loading it is what the server that has loaded it promises."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from ros2_rfm_serving.cli.check import check
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue
from ros2_rfm_serving.operate.known_contracts import known_contract
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import ModelContract

CATALOGUE = Catalogue.load(shipped("config", "profiles", "models.yaml"))
KINDS = ("flow", "diffusion", "autoregressive", "images", "judge", "planner")
BUNDLES = [f"rfm/metaworld-{kind}" for kind in KINDS]
"""One bundle of each kind that ships."""
COMPARED = (
    *("output", "action_names", "cameras", "state_size", "chunk_length", "control_rate_hz"),
    *("max_inference_delay_steps", "conditionings"),
)


def loaded(model: str, gpu_type: str) -> ModelContract:
    profile = load_profiles(shipped("config", "profiles"))
    folder = shipped("models")
    return build_engine(
        EngineSpec(
            model=model,
            entry=CATALOGUE[model],
            models_folder=folder,
            profile=profile,
            gpu_type=gpu_type,
            wait=time.sleep,
        )
    ).contract


@pytest.mark.parametrize("model", [*BUNDLES, "emulated/arm-policy"])
def test_files_say_what_the_loaded_model_promises(model: str) -> None:
    known = known_contract(model, CATALOGUE[model])
    assert known is not None
    real = loaded(model, "EMULATED" if model.startswith("emulated") else "CPU")
    assert [getattr(known, name) for name in COMPARED] == [getattr(real, name) for name in COMPARED]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "action names": (
        {"action_names": ["delta_y", "delta_x", "delta_z", "gripper"]},
        r"action_names: system1: action names and order: the robot has .*'delta_y', 'delta_x'.*rfm/metaworld-flow",
    ),
    "cameras": ({"cameras": ["side", "wrist"]}, r"cameras: system1: cameras: the robot has \('side', 'wrist'\), the model"),
    "state size": ({"state_size": 40}, "state_size: system1: state size: the robot has 40, the model 39"),
}


def written(folder: Path, changes: dict[str, Any], model: str = "rfm/metaworld-flow") -> Path:
    own = yaml.safe_load(shipped("config", "robots", "metaworld_arm.yaml").read_text(encoding="utf-8"))
    own["/**"]["ros__parameters"] |= changes
    (folder / "mine.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
    tree = yaml.safe_load(shipped("config", "factory_quickstart.yaml").read_text(encoding="utf-8"))
    tree["push"] |= {"robot": "mine.yaml"}
    tree["push"]["components"]["system1"]["model"] = model
    file = folder / "factory.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return file


@pytest.mark.parametrize("case", WRONG)
def test_a_robot_that_its_model_would_refuse_is_refused_with_file_key_and_both_values(tmp_path: Path, case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(ConfigurationError, match=rf"mine\.yaml:\d+: .*{message}"):
        check(written(tmp_path, changes))


def test_a_conditioning_that_the_model_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"mine\.yaml:\d+: .*conditioning: system1: .*asks for 'guided', the model can do 'none'"
    ):
        check(written(tmp_path, {"conditioning": "guided"}, "rfm/metaworld-images"))


def test_a_robot_that_fits_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(written(tmp_path, {}))
    assert "factory.yaml: valid" in capsys.readouterr().out


def test_a_misspelt_role_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, {})
    file.write_text(file.read_text().replace("monitor:", "moniter:", 1), encoding="utf-8")
    check(file)
    assert "components.moniter: no robot acts upon its answers; did you mean `monitor`?" in capsys.readouterr().out


ENGINE = """
from dataclasses import replace

from ros2_rfm_serving.engines.emulated import EmulatedEngine, spec_of


def build(spec):
    engine = EmulatedEngine(spec_of(spec.model, spec.entry), lambda batch_size: 0.0, spec.wait)
    engine._contract = replace(engine.contract, control_rate_hz=30.0)
    return engine
"""


def test_what_only_a_loaded_model_says_is_compared_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rate_of_mine.py").write_text(ENGINE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    models = yaml.safe_load(shipped("config", "profiles", "models.yaml").read_text(encoding="utf-8"))
    models["models"]["rfm/metaworld-flow"] = {**models["models"]["emulated/arm-policy"], "engine": "rate_of_mine:build"}
    catalogue = tmp_path / "models.yaml"
    catalogue.write_text(yaml.safe_dump(models), encoding="utf-8")
    file = written(tmp_path, {})
    check(file, catalogue=catalogue)
    assert "rfm/metaworld-flow says what it expects of robots: `--load` compares that" in capsys.readouterr().out
    with pytest.raises(ConfigurationError, match="system1: control rate: the robot runs at 20 Hz, the demonstrations ran at 30 Hz"):
        check(file, catalogue=catalogue, load=True)
