"""openpi's checkpoints as its converter and its trainings write them, and what they do not say.

The layouts are those of Physical-Intelligence/openpi at 15a9616a: examples/convert_jax_model_to_pytorch.py,
scripts/train_pytorch.py (`save_checkpoint`) and src/openpi/training/checkpoints.py (orbax).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.engines.architectures import bundle
from ros2_rfm_serving.engines.architectures.manifest import Processing
from ros2_rfm_serving.engines.architectures.normaliser import Normaliser
from ros2_rfm_serving.errors import ModelError
from test.engines.parity import common

WORDS = ("--action-names", "x,y,z,gripper", "--cameras", "front,left,right")
STATS = "assets/toy/norm_stats.json"
NO_STATE = "--no-discrete-state-input"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return common.checkpoint(common.read("pi05_openpi"), tmp_path / "pi05_libero")


def run(source: Path, target: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["import", str(source), str(target), *WORDS, *words])


def said(result: Result) -> str:
    return " ".join(f"{result.output} {result.exception or ''}".split())


def processing_of(folder: Path) -> Processing:
    return bundle.manifest_of(folder).processing


def as_trained(source: Path) -> Path:
    """As `train_pytorch.py` leaves it: pickles beside the weights, and nothing that says a size."""
    (source / "config.json").unlink()
    for name in ("metadata.pt", "optimizer.pt"):
        (source / name).write_bytes(b"a pickle, which nobody opens")
    return source


def test_a_pi05_without_its_state_in_its_prompt_is_asked_with_the_instruction_alone(source: Path, tmp_path: Path) -> None:
    result = run(source, tmp_path / "b", NO_STATE)
    assert result.exit_code == 0, said(result)
    assert "the prompt is the instruction alone" in said(result)
    prompt = processing_of(tmp_path / "b").prompt
    assert prompt.template == "{instruction}\n" and prompt.clean and prompt.max_tokens == 112
    policy = common.policy_of(tmp_path / "b")
    (one, other) = common.requests_of(common.read("pi05_openpi"), policy.contract)
    rows = [
        policy.processor.observation([one]).tokens,
        policy.processor.observation([replace(one, state=other.state)]).tokens,
    ]
    assert (rows[0] == rows[1]).all(), "the state must not be in the prompt"


@pytest.mark.parametrize("words", [(), ("--discrete-state-input",)])
def test_a_pi05_is_taken_to_have_its_state_in_its_prompt_and_that_is_said(
    words: tuple[str, ...], source: Path, tmp_path: Path
) -> None:
    result = run(source, tmp_path / "b", *words)
    assert result.exit_code == 0 and "discrete_state_input=False" in said(result) and NO_STATE in said(result)
    assert "{state}" in processing_of(tmp_path / "b").prompt.template
    assert NO_STATE in (tmp_path / "b" / "MODEL_CARD.md").read_text()


def test_what_a_completed_configuration_says_of_the_prompt_counts(source: Path, tmp_path: Path) -> None:
    config = json.loads((source / "config.json").read_text()) | {"discrete_state_input": False}
    (source / "config.json").write_text(json.dumps(config))
    assert run(source, tmp_path / "b").exit_code == 0
    assert processing_of(tmp_path / "b").prompt.template == "{instruction}\n"
    assert "config.json: discrete_state_input is false, which the option contradicts" in said(
        run(source, tmp_path / "c", "--discrete-state-input")
    )


@pytest.mark.parametrize("kind", ["pi0_openpi", "pi05_openpi"])
def test_a_checkpoint_of_train_pytorch_is_imported_with_the_length_of_its_chunk(kind: str, tmp_path: Path) -> None:
    trained = as_trained(common.checkpoint(common.read(kind), tmp_path / "29999"))
    config = json.loads((common.checkpoint(common.read(kind), tmp_path / "whole") / "config.json").read_text())
    # the toy's heads are smaller than any published model's, which weights alone do not tell
    (trained / "config.json").write_text(
        json.dumps({key: config[key] for key in ("head_dim", "vision_heads", "paligemma_variant")})
    )
    assert "give --chunk-length" in said(run(trained, tmp_path / "b"))
    result = run(trained, tmp_path / "b", "--chunk-length", "12")
    assert result.exit_code == 0, said(result)
    manifest = bundle.manifest_of(tmp_path / "b")
    assert manifest.network["chunk_length"] == 12 and manifest.sampling.num_steps == 10
    assert manifest.processing.prompt.max_tokens == {"pi0_openpi": 48, "pi05_openpi": 200}[kind]
    bundle.load(tmp_path / "b")


@pytest.mark.parametrize("lost", [(), ("optimizer.pt",), ("optimizer.pt", "metadata.pt")])
def test_a_checkpoint_of_train_pytorch_is_recognised_by_what_lies_beside_its_weights(
    lost: tuple[str, ...], source: Path, tmp_path: Path
) -> None:
    """The optimizer is twice as large as the model, so that copies lack it."""
    trained = as_trained(source)
    for name in lost:
        (trained / name).unlink()
    assert "how many actions a chunk has is not in it: give --chunk-length" in said(run(trained, tmp_path / "b"))


def test_a_length_that_contradicts_the_checkpoint_is_refused(source: Path, tmp_path: Path) -> None:
    assert "config.json: action_horizon is 12, --chunk-length says 10" in said(run(source, tmp_path / "b", "--chunk-length", "10"))


def test_of_several_assets_an_option_chooses(source: Path, tmp_path: Path) -> None:
    stats = json.loads((source / STATS).read_text())
    stats["norm_stats"]["state"]["q01"] = [-9.0] * 6
    other = source / "assets" / "physical-intelligence" / "libero"  # an asset's id may be a data set's, with its owner
    other.mkdir(parents=True)
    (other / "norm_stats.json").write_text(json.dumps(stats))
    message = said(run(source, tmp_path / "b"))
    assert "norm_stats.json is there 2 times" in message and "--assets with one of physical-intelligence/libero, toy" in message
    assert "'droid' is not there" in said(run(source, tmp_path / "b", "--assets", "droid"))
    for name, least in (("physical-intelligence/libero", -9.0), ("toy", -0.8)):
        target = tmp_path / name.replace("/", "-")
        assert run(source, target, "--assets", name).exit_code == 0
        assert processing_of(target).state.offset[0] == pytest.approx(least)


def orbax(folder: Path) -> Path:
    """A step of openpi's JAX training."""
    for name in ("params", "train_state", "assets/droid"):
        (folder / name).mkdir(parents=True)
    (folder / "params" / "_METADATA").write_text("{}")
    (folder / "assets/droid/norm_stats.json").write_text("{}")
    (folder / "_CHECKPOINT_METADATA").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda at: orbax(at / "29999"), "29999: a checkpoint of openpi's JAX training (orbax)"),
        (lambda at: orbax(at / "29999") / "params", "--checkpoint_dir {at}/29999 --config_name NAME --output_path OUT"),
        (lambda at: orbax(at / "run" / "29999").parent, "a training run with 1 checkpoints; import one of them: {at}/run/29999"),
        (lambda at: shutil.copytree(at / "pi05_libero", at / "run" / "500").parent, "import one of them: {at}/run/500"),
    ],
)
def test_a_folder_of_another_form_is_refused_with_the_command_that_helps(
    given: Callable[[Path], Path], message: str, source: Path, tmp_path: Path
) -> None:
    result = run(given(tmp_path), tmp_path / "b")
    assert isinstance(result.exception, ModelError) and message.format(at=tmp_path) in said(result)
    assert "convert_jax_model_to_pytorch.py" in said(result) or "import one of them" in said(result)


def test_pi0_has_no_state_in_its_prompt(tmp_path: Path) -> None:
    pi0 = common.checkpoint(common.read("pi0_openpi"), tmp_path / "pi0")
    assert "pi0 has its state beside its prompt" in said(run(pi0, tmp_path / "b", "--discrete-state-input"))
    assert run(pi0, tmp_path / "b", NO_STATE).exit_code == 0


def test_columns_that_never_moved_are_scaled_as_openpi_scales_them(source: Path, tmp_path: Path) -> None:
    """By openpi's arithmetic (src/openpi/transforms.py): float64 statistics, and 1e-6 added to the width of a range."""
    low = np.array([0.5, -1.5708, 1.0, 0.3, 0.0, -0.2])
    high = np.array([0.5, -1.5708, 1.001, 0.9, 1e-5, 1.4])

    stats = json.loads((source / STATS).read_text())
    stats["norm_stats"]["state"].update(q01=low.tolist(), q99=high.tolist())
    (source / STATS).write_text(json.dumps(stats))
    assert run(source, tmp_path / "b").exit_code == 0
    ours = Normaliser(processing_of(tmp_path / "b").state, len(low))
    for state in (low.astype(np.float32), high.astype(np.float32), np.linspace(-1, 1, len(low), dtype=np.float32)):
        theirs = (state - low) / (high - low + 1e-6) * 2.0 - 1.0
        np.testing.assert_allclose(ours.normalized(state), theirs, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q01": [float("nan")] * 6}, "norm_stats.json: norm_stats.state.q01: finite numbers are expected, it has nan"),
        ({"q99": ["1.0"] * 6}, "norm_stats.state.q99: finite numbers are expected, it has '1.0'"),
        ({"q99": [-9.0] * 6}, "norm_stats.state: q99 is below q01"),
    ],
)
def test_statistics_that_scale_nothing_are_refused_by_file_and_key(
    change: dict[str, list[object]], message: str, source: Path, tmp_path: Path
) -> None:
    stats = json.loads((source / STATS).read_text())
    stats["norm_stats"]["state"].update(change)
    (source / STATS).write_text(json.dumps(stats))
    assert message in said(run(source, tmp_path / "b"))
