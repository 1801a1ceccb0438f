"""`rfm import` and `rfm bundle`: checkpoints of others, and what is wrong with them."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.engines.architectures.importers import importing
from ros2_rfm_serving.engines.bundles import build
from ros2_rfm_serving.engines.embedded import bundle as embedded
from ros2_rfm_serving.engines.registry import EngineSpec
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.operate import bundles
from ros2_rfm_serving.profiles import Profile
from test.engines.parity import common

LEROBOT, OPENPI = "smolvla", "pi0_openpi"
NAMES = ["--action-names", "x,y,z,gripper"]
WORDS: dict[str, list[str]] = {
    LEROBOT: [*NAMES, "--tokenizer", "vlm"],
    OPENPI: [*NAMES, "--cameras", "front,left,right"],
}


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    return {name: common.checkpoint(common.read(name), tmp_path / name) for name in (LEROBOT, OPENPI)}


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)


def imported(source: Path, target: Path, *more: str) -> Result:
    words = [str(source / word) if word == "vlm" else word for word in WORDS[source.name]]
    return run("import", source, target, *words, *more)


def said(result: Result) -> str:
    return re.sub(r"\s+", " ", f"{result.output} {result.exception or ''}")


@pytest.mark.parametrize("name", [LEROBOT, OPENPI])
def test_a_checkpoint_becomes_a_bundle_that_says_where_it_came_from(name: str, sources: dict[str, Path], tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    result = imported(sources[name], bundle, "--licence", "apache-2.0", "--control-rate-hz", "30")
    assert result.exit_code == 0, said(result)
    assert {file.name for file in bundle.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json", "MODEL_CARD.md"}
    told = json.loads(run("bundle", "show", bundle, "--json").stdout)
    assert told["card"]["license"] == "apache-2.0" and len(told["card"]["source_sha256"]) == 64
    assert told["card"]["bundle_sha256"] == told["hash"] and told["contract"]["control_rate_hz"] == 30
    assert run("bundle", "verify", bundle).exit_code == 0
    assert "chunk_length" in run("bundle", "show", bundle).stdout


def test_a_card_that_is_no_text_is_shown_as_it_can_be(sources: dict[str, Path], tmp_path: Path) -> None:
    assert imported(sources[OPENPI], tmp_path / "b").exit_code == 0
    (tmp_path / "b" / "MODEL_CARD.md").write_bytes(b"---\n\xff\xfe: 1\n---\n")
    assert run("bundle", "show", tmp_path / "b").exit_code == 0
    assert "no bundle_sha256" in said(run("bundle", "verify", tmp_path / "b"))


def test_names_in_brackets_are_names(sources: dict[str, Path], tmp_path: Path) -> None:
    result = run("import", sources[OPENPI], tmp_path / "b[/x]", *NAMES, "--cameras", "[/x],left,right")
    assert result.exit_code == 0 and "cameras [/x], left, right" in said(result)


def test_a_checkpoint_here_has_the_folders_name(sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sources[OPENPI])
    assert run("import", ".", tmp_path / "b", *WORDS[OPENPI]).exit_code == 0
    assert bundles.card_of(tmp_path / "b")["source"] == OPENPI


def test_only_the_observations_that_lerobot_normalises_are_scaled(sources: dict[str, Path], tmp_path: Path) -> None:
    file = sources[LEROBOT] / "policy_preprocessor.json"
    content = json.loads(file.read_text())
    content["steps"][-1]["config"]["normalize_observation_keys"] = []
    file.write_text(json.dumps(content))
    assert imported(sources[LEROBOT], tmp_path / "b").exit_code == 0
    processing = json.loads((tmp_path / "b" / "config.json").read_text())["processing"]
    assert not processing["state"]["scale"] and processing["action"]["scale"]


def test_a_bundle_that_was_changed_is_found_and_told_apart(sources: dict[str, Path], tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert imported(sources[LEROBOT], one).exit_code == 0
    shutil.copytree(one, other)
    assert run("bundle", "diff", one, other).exit_code == 0
    config = json.loads((other / "config.json").read_text())
    config["sampling"]["num_steps"] = 7
    (other / "config.json").write_text(json.dumps(config))
    weights = load_file(other / "model.safetensors")
    weights["action_out.bias"] += 0.5
    save_file(weights, other / "model.safetensors")
    result = run("bundle", "diff", one, other)
    assert result.exit_code == 1 and "sampling.num_steps: 5 -> 7" in said(result)
    assert "action_out.bias: up to 0.5 apart" in said(result) and "state_in" not in said(result)
    result = run("bundle", "verify", other)
    assert result.exit_code == 1 and "bundle_sha256" in said(result)
    weights["action_out.bias"][0] = torch.nan
    save_file(weights, other / "model.safetensors")
    assert "not finite: action_out.bias" in said(run("bundle", "verify", other))


class Bomb:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('ran')",)


Change = Callable[[Path], object]


def edited(name: str, **changes: Any) -> Change:
    def edit(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        content.update(changes)
        (folder / name).write_text(json.dumps(content))

    return edit


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return edit


def step(name: str, **changes: Any) -> Change:
    def edit(folder: Path) -> None:
        file = folder / "policy_preprocessor.json"
        content = json.loads(file.read_text())
        content["steps"].append({"registry_name": name, "config": changes})
        file.write_text(json.dumps(content))

    return edit


def images_normalised(folder: Path) -> None:
    file = folder / "policy_preprocessor.json"
    content = json.loads(file.read_text())
    normalizer = content["steps"][-1]
    normalizer["config"]["norm_map"]["VISUAL"] = "MEAN_STD"
    file.write_text(json.dumps(content))
    camera = next(name for name, each in normalizer["config"]["features"].items() if each["type"] == "VISUAL")
    tensors = load_file(folder / normalizer["state_file"])
    more = {f"{camera}.mean": torch.full((3, 1, 1), 0.5), f"{camera}.std": torch.full((3, 1, 1), 0.25)}
    save_file(tensors | more, folder / normalizer["state_file"])


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb()))


def stats(**changes: Any) -> Change:
    """Of openpi's actions."""
    return edited(
        "assets/toy/norm_stats.json",
        norm_stats={"state": {"mean": [0.0] * 5, "std": [1.0] * 5}, "actions": {"mean": [0.0] * 4, "std": [1.0] * 4} | changes},
    )


def short_statistics(folder: Path) -> None:
    file = next(folder.glob("policy_postprocessor*.safetensors"))
    save_file({name: tensor[:1].clone() for name, tensor in load_file(file).items()}, file)


def there_twice(folder: Path) -> None:
    """Of two kinds; the library takes the second."""
    content = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].decode()
    told = re.search(r'"model\.action_out_proj\.bias":\{[^}]*\}', header)
    assert told
    twice = ("{" + told[0].replace("F32", "I32") + "," + header[1:]).encode()
    (folder / "model.safetensors").write_bytes(len(twice).to_bytes(8, "little") + twice + content[8 + size :])


def pipe(name: str) -> Change:
    def edit(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return edit


def words_of_another(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"] = {word: 1000 + id for word, id in content["model"]["vocab"].items()}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def without_a_model(folder: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (folder / name).unlink()


REFUSED: dict[str, tuple[str, Change, str]] = {
    "another policy": (LEROBOT, edited("config.json", type="act"), "config.json: type is 'act'"),
    "an adapter": (LEROBOT, edited("config.json", use_peft=True), "use_peft is true: it holds an adapter only"),
    "no processors": (LEROBOT, lambda f: (f / "policy_preprocessor.json").unlink(), "policy_preprocessor.json is missing"),
    "a step of its own": (LEROBOT, step("my_step"), "policy_preprocessor.json: a step 'my_step'"),
    "actions that are made relative, and never absolute": (
        LEROBOT,
        step("relative_actions_processor", enabled=True),
        "absolute_actions_processor of policy_postprocessor.json: one of them is enabled alone",
    ),
    "a step that is there twice": (LEROBOT, step("to_batch_processor"), "'to_batch_processor' is there twice"),
    "images that are normalised": (
        LEROBOT,
        images_normalised,
        "norm_map: VISUAL is MEAN_STD, with statistics of",
    ),
    "a key that is there twice": (
        LEROBOT,
        lambda f: (f / "config.json").write_text('{"type": "act", ' + (f / "config.json").read_text()[1:]),
        "a key is there twice: 'type'",
    ),
    "weights beyond the numbers that serve": (
        LEROBOT,
        weights(lambda w: w.update({"model.state_proj.bias": torch.full((32,), 1e300, dtype=torch.float64)})),
        "not finite: model.state_proj.bias",
    ),
    "a camera without a name that can be written": (
        LEROBOT,
        edited("config.json", input_features={"observation.images.\ud800": {"type": "VISUAL", "shape": [3, 48, 64]}}),
        r"all printable: '\ud800'",
    ),
    "half a step of delay": (LEROBOT, edited("config.json", rtc_training_max_delay=5.9), "rtc_training_max_delay: a whole number"),
    "pickle": (LEROBOT, pickled, "model.safetensors: no safetensors can be read"),
    "unknown weights": (LEROBOT, weights(lambda w: w.update(more=torch.zeros(2))), "1 unknown weights: more"),
    "missing weights": (LEROBOT, weights(lambda w: w.pop("model.action_out_proj.bias")), "1 missing (action_out.bias)"),
    "a weight of another shape": (
        LEROBOT,
        weights(lambda w: w.update({"model.state_proj.weight": torch.zeros(3, 3)})),
        "state_in.weight is [3, 3]",
    ),
    "weights that are not finite": (
        LEROBOT,
        weights(lambda w: w.update({"model.state_proj.bias": torch.full((32,), torch.inf)})),
        "not finite: model.state_proj.bias",
    ),
    "other images": (
        LEROBOT,
        edited("config.json", resize_imgs_with_padding=[96, 96]),
        "[64, 64] is expected, for which its image encoder has positions",
    ),
    "no JSON": (LEROBOT, lambda f: (f / "config.json").write_text("{"), "config.json: no JSON"),
    "no tokenizer": (OPENPI, lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer.json: give --tokenizer"),
    "a broken tokenizer": (OPENPI, lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json: no tokenizer can be read"),
    "another model's tokenizer": (OPENPI, words_of_another, "the network 128 rows: it is another model's"),
    "steps that are a truth": (OPENPI, edited("config.json", num_steps=True), "num_steps: a whole number is expected, it is True"),
    "half a token": (OPENPI, edited("config.json", max_token_len=5.5), "max_token_len: a whole number is expected"),
    "half a camera": (LEROBOT, edited("config.json", empty_cameras=0.5), "empty_cameras: a whole number is expected"),
    "no statistics": (OPENPI, lambda f: shutil.rmtree(f / "assets"), "norm_stats.json is missing"),
    "statistics that are too short": (
        OPENPI,
        edited("assets/toy/norm_stats.json", norm_stats={"state": {"mean": [0.0], "std": [1.0]}, "actions": {"mean": [0.0]}}),
        "norm_stats.actions.mean has fewer than 4 numbers",
    ),
    "JSON that is too deep": (
        LEROBOT,
        lambda f: (f / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000),
        "config.json: no JSON",
    ),
    "quantised weights": (
        LEROBOT,
        weights(lambda w: w.update({"model.state_proj.bias": torch.zeros(32, dtype=torch.float8_e4m3fn)})),
        "model.state_proj.bias is of torch.float8_e4m3fn",
    ),
    "weights without rows": (
        LEROBOT,
        weights(lambda w: w.update({k: t[:0].clone() for k, t in w.items()})),
        "not as 'lerobot' saves it",
    ),
    "sizes for more memory than there is": (LEROBOT, edited("config.json", max_state_dim=10**12), "config.json makes it"),
    "a number that is none": (LEROBOT, edited("config.json", num_steps="x"), "num_steps: a whole number is expected, it is 'x'"),
    "no steps": (LEROBOT, edited("config.json", num_steps=0), "config.json: sampling.num_steps"),
    "steps for ever": (LEROBOT, edited("config.json", num_steps=10**9), "config.json: sampling.num_steps"),
    "a step before the first": (LEROBOT, edited("config.json", num_steps=-3), "config.json: sampling.num_steps"),
    "a chunk for ever": (LEROBOT, edited("config.json", chunk_size=10**9), "chunk_length"),
    "a prefix as long as the chunk": (LEROBOT, edited("config.json", rtc_training_max_delay=12), "max_inference_delay_steps: 12"),
    "a state that is wider than the network's": (
        LEROBOT,
        edited("config.json", input_features={"observation.state": {"type": "STATE", "shape": [500]}}),
        "contract.state_size: 500, of a network for at most 8",
    ),
    "statistics that are no numbers": (OPENPI, stats(mean=[float("nan")] * 4), "norm_stats.actions.mean: finite numbers"),
    "statistics that turn actions round": (OPENPI, stats(std=[-1.0] * 4), "scale.0"),
    "statistics of fewer columns": (LEROBOT, short_statistics, "processing.action.offset has 1 numbers for 4 columns"),
    "a weight that is there twice": (LEROBOT, there_twice, "a key is there twice: 'model.action_out_proj.bias'"),
    "statistics from a pipe": (OPENPI, pipe("assets/toy/norm_stats.json"), "norm_stats.json: is no file"),
    "half an action": (LEROBOT, edited("config.json", output_features={"action": {"shape": [4.9]}}), "it is [4.9]"),
    "actions of two axes": (LEROBOT, edited("config.json", output_features={"action": {"shape": [4, 7]}}), "it is [4, 7]"),
    "half a state": (
        LEROBOT,
        edited("config.json", input_features={"observation.state": {"type": "STATE", "shape": [6.5]}}),
        "input_features.observation.state.shape: a list of one whole number is expected, it is [6.5]",
    ),
    "half a pixel": (
        LEROBOT,
        edited("config.json", resize_imgs_with_padding=[64.9, 64.9]),
        "[64, 64] is expected, for which its image encoder has positions",
    ),
    "names that are one word": (LEROBOT, edited("config.json", action_feature_names="xyzg"), "action_feature_names: a list"),
    "no length of a chunk": (OPENPI, lambda f: (f / "config.json").unlink(), "--chunk-length"),
    "nothing": (OPENPI, without_a_model, "no checkpoint that an importer recognises"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_with_a_checkpoint_is_said_and_nothing_is_left_behind(
    what: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    name, change, message = REFUSED[what]
    change(sources[name])
    result = imported(sources[name], tmp_path / "bundle")
    assert isinstance(result.exception, ModelError), said(result)
    assert message in said(result)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    "at, value, message",
    [
        (("processing", "action", "scale"), [float("inf"), 1, 1, 1], "processing.action.scale.0"),
        (("processing", "images", "std"), [0, 1, 1], "processing.images.std.0"),
        (("contract", "action_names"), ["x", "y", "z"], "processing.action.offset has 4 numbers for 3 columns"),
        (("contract", "action_names"), ["x", "y", "z", "x"], "none twice, none empty, all printable: 'x'"),
        (("contract", "state_size"), 33, "contract.state_size: 33"),
        (("network", "state_columns"), 10**12, "config.json makes it"),
        (("network", "language", "heads"), 10**9, "config.json makes it"),
        (("network", "vision", "heads"), 7, "network: none can be made of these sizes"),
        (("processing", "prompt", "pad_token"), 10**6, "processing.prompt.pad_token"),
        (("sampling", "num_steps"), 10**9, "sampling.num_steps"),
    ],
)
def test_a_configuration_that_was_edited_is_refused_by_key(
    at: tuple[str, ...], value: Any, message: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    assert imported(sources[OPENPI], tmp_path / "b").exit_code == 0
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    inner = config
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    (tmp_path / "b" / "config.json").write_text(json.dumps(config))
    result = run("bundle", "verify", tmp_path / "b")
    assert result.exit_code == 1 and message in said(result), said(result)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device"), SafetensorError("I/O error")])
def test_an_import_that_is_broken_off_leaves_no_folder(
    error: Any, sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(weights: Any, file: Path) -> None:
        file.write_bytes(b"half of it")
        assert not (tmp_path / "b").exists()
        raise error

    monkeypatch.setattr(embedded, "save_file", full)
    result = imported(sources[OPENPI], tmp_path / "b")
    assert result.exit_code
    assert error is KeyboardInterrupt or "b: cannot be written" in said(result)
    assert not [file.name for file in tmp_path.iterdir() if "b" in file.name.split(".")]


def test_of_two_imports_into_one_folder_the_second_is_told(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's files are touched by the other, also where both processes have one number, as in two containers."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    with pytest.raises(ModelError, match=r"b: cannot be written: .*not empty"), importing.staged(tmp_path / "b") as folder:
        (folder / "config.json").write_text("the second's")
        assert imported(sources[OPENPI], tmp_path / "b").exit_code == 0
        assert (folder / "config.json").read_text() == "the second's"
    assert run("bundle", "verify", tmp_path / "b").exit_code == 0
    assert {file.name for file in tmp_path.iterdir()} == {"b", *sources}


def test_who_may_read_a_configuration_may_read_its_weights(sources: dict[str, Path], tmp_path: Path) -> None:
    assert imported(sources[OPENPI], tmp_path / "b").exit_code == 0
    modes = {file.stat().st_mode for file in (tmp_path / "b").iterdir()}
    assert len(modes) == 1


def test_a_bundle_without_its_card_is_not_whole(sources: dict[str, Path], tmp_path: Path) -> None:
    assert imported(sources[OPENPI], tmp_path / "b").exit_code == 0
    (tmp_path / "b" / "MODEL_CARD.md").unlink()
    result = run("bundle", "verify", tmp_path / "b")
    assert result.exit_code == 1 and "no bundle_sha256" in said(result)


def test_which_embodiment_is_said_on_the_command_line(tmp_path: Path) -> None:
    source = common.checkpoint(common.read("groot_n1_5"), tmp_path / "source")
    assert "which embodiment?" in said(run("import", source, tmp_path / "b", "--kind", "nobody"))


def test_show_says_what_is_wrong_with_weights(sources: dict[str, Path], tmp_path: Path) -> None:
    assert imported(sources[OPENPI], tmp_path / "b").exit_code == 0
    (tmp_path / "b" / "model.safetensors").write_bytes(b"12345678{}")
    assert "model.safetensors: cannot be read" in said(run("bundle", "show", tmp_path / "b"))


def test_what_no_checkpoint_says_is_asked_for(sources: dict[str, Path], tmp_path: Path) -> None:
    for name, words in ((LEROBOT, ["--tokenizer", str(sources[LEROBOT] / "vlm")]), (OPENPI, [])):
        assert "give --action-names" in said(run("import", sources[name], tmp_path / "b", *words))
    result = run("import", sources[OPENPI], tmp_path / "b", *NAMES, "--cameras", "a,b,c,d")
    assert "--cameras: 4 for a network with 3" in said(result)
    assert "is there already" in said(imported(sources[OPENPI], sources[OPENPI]))
    assert "no importer is named 'gguf'" in said(imported(sources[OPENPI], tmp_path / "b", "--as", "gguf"))


def test_an_imported_bundle_is_an_entry_of_the_catalogue(sources: dict[str, Path], tmp_path: Path) -> None:
    assert imported(sources[OPENPI], tmp_path / "models" / "pi0").exit_code == 0

    def spec(**options: Any) -> EngineSpec:
        entry = CatalogueEntry(engine="bundle", bundle="pi0", options=options)
        return EngineSpec(
            model="toy/pi0",
            entry=entry,
            models_folder=tmp_path / "models",
            profile=Profile({}),
            gpu_type="CPU",
            wait=lambda s: None,
        )

    engine = build(spec())
    assert engine.contract.cameras == ("front", "left", "right") and engine.contract.pipelines
    assert build(spec(num_steps=3)).contract.model_hash != engine.contract.model_hash
    assert build(spec(dtype="bfloat16")).check_parity()
