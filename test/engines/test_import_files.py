"""`rfm import`: weights in several files, and what a checkpoint's names put onto a card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ros2_rfm_serving.engines.architectures.importers.shards import INDEX, read_weights
from ros2_rfm_serving.engines.weights_header import MOST_BYTES
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.operate import bundles
from test.engines.parity import common
from test.engines.test_import import run, said


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        (b"---\nlicense: gemma\n---\n# toy\n", "gemma"),
        (b"# toy\nlicense: gemma\n", "unknown"),
        (b"---\nlicense:\n- mit\n---\n", "unknown"),
        (b"---\n\xff\xfe: 1\n---\n", "unknown"),
    ],
)
def test_a_licence_is_the_checkpoints_own(card: bytes, licence: str, tmp_path: Path) -> None:
    source = common.checkpoint(common.read("evo1"), tmp_path / "source")
    (source / "README.md").write_bytes(card)
    common.imported(common.read("evo1"), source, tmp_path / "b")
    assert bundles.card_of(tmp_path / "b")["license"] == licence


def test_a_header_longer_than_any_models_is_refused(tmp_path: Path) -> None:
    """Blanks may follow it, and the library would read this one."""
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].ljust(MOST_BYTES + 8)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
    with pytest.raises(ModelError, match=rf"model\.safetensors: its header says that it has {MOST_BYTES + 8} bytes"):
        read_weights(tmp_path)


def test_weights_that_two_files_have_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"w": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}))
    with pytest.raises(ModelError, match=r"b\.safetensors: w is in another file, too"):
        read_weights(tmp_path)


def test_weights_that_are_there_whole_and_in_parts_are_refused(tmp_path: Path) -> None:
    for name, value in (("a", 0.0), ("model", 1.0)):
        save_file({"w": torch.full((1,), value)}, tmp_path / f"{name}.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"w": "a.safetensors"}}))
    with pytest.raises(ModelError, match=r"has model\.safetensors and model\.safetensors\.index\.json"):
        read_weights(tmp_path)


def test_a_folders_name_adds_nothing_to_a_card(tmp_path: Path) -> None:
    source = common.checkpoint(common.read("evo1"), tmp_path / "toy\nlicense: mit\n---")
    result = run("import", source, tmp_path / "b", "--licence", "gemma\n---")
    assert result.exit_code == 0, said(result)
    card = bundles.card_of(tmp_path / "b")
    assert (card["license"], card["source"]) == ("gemma ---", "toy license: mit ---")
    assert run("bundle", "verify", tmp_path / "b").exit_code == 0
