"""python -m test.shift.exported BAG DATASET, where LeRobot is: what `rfm export` makes of a shift, as LeRobot reads it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from test.engines import operators  # noqa: F401  before anything of LeRobot's

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # isort: skip

from ros2_rfm_serving.cli.export import export


def main(bag: Path, dataset: Path) -> None:
    export(bag, dataset)
    data = LeRobotDataset("shift", root=dataset)
    for at in (0, len(data) // 2, len(data) - 1):
        assert data[at]["observation.images.front"].ndim == 3 and data[at]["observation.state"].shape == (39,)
    columns = data.hf_dataset.with_format(None).select_columns(["success", "intervention.paused", "source.sequence"])
    counts = {
        "frames": len(data),
        "episodes": data.meta.total_episodes,
        "frames of a chunk": sum(sequence >= 0 for sequence in columns["source.sequence"]),
        "frames paused": int(sum(columns["intervention.paused"])),
        "frames of success": sum(success == 1 for success in columns["success"]),
    }
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
