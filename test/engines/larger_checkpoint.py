"""A checkpoint of LeRobot's with random weights, towards the published size, its bundle, and a catalogue that names both.

    python -m test.engines.larger_checkpoint KIND DIR [published]

SmolVLA: four layers a quarter as wide as the sixteen of the published one, five solver steps, which `torch.compile` unrolls; pi0
and pi0.5: two layers (`tiny_lerobot.LARGER`). SmolVLA has its published size too (`tiny_lerobot.PUBLISHED`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from test.engines import conftest  # noqa: F401 (before anything that imports torchvision)

# isort: split
import yaml

from ros2_rfm_serving.engines.architectures.importers.base import ImportOptions
from ros2_rfm_serving.engines.architectures.importers.importing import import_checkpoint
from test.engines import tiny_lerobot as tiny

SIZES = {"head_dim": 8, "vision_heads": 2}
"""Of toys of pi0, which no code has and the importer is told."""
FEWER = {"smolvla": {"num_vlm_layers": 4, "num_steps": 5}}


def write(kind: str, folder: Path, *, published: bool = False) -> Path:
    """The catalogue: `ours` and `lerobot`."""
    source, bundle = folder / "source", folder / "bundle"
    source.mkdir(parents=True)
    tiny.save(kind, source, **(tiny.PUBLISHED[kind] if published else tiny.LARGER[kind] | FEWER.get(kind, {})))
    config = source / "config.json"
    before = config.read_text()
    config.write_text(json.dumps(json.loads(before) | SIZES))
    wishes = ImportOptions(action_names=tiny.NAMES, tokenizer=source / "vlm", state_words=32 if kind == "pi05" else 0)
    import_checkpoint(source, bundle, wishes)
    config.write_text(before)
    options = {"path": str(source), "tokenizer": str(source / "vlm"), "action_names": list(tiny.NAMES)}
    models = {"ours": {"engine": "bundle", "bundle": str(bundle)}, "lerobot": {"engine": "lerobot", "options": options}}
    catalogue = folder / "models.yaml"
    catalogue.write_text(yaml.safe_dump({"models": models}))
    return catalogue


if __name__ == "__main__":
    print(write(sys.argv[1], Path(sys.argv[2]).resolve(), published=sys.argv[3:] == ["published"]))
