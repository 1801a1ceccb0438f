#!/usr/bin/env bash
# LeRobot creates a data set with videos at 12.5 frames per second, takes its frames, and refuses the first episode when it is saved.
#
# Versions: lerobot 0.4.4 with av from its own requirements; Python 3.11, Debian 12.
# Expected: the rate is accepted and encoded as 25/2, or `LeRobotDataset.create` refuses it.
# Seen: `create` and `add_frame` accept fps 12.5; `save_episode` raises an AttributeError about `numerator` while the video is encoded. The same
#   data set is saved with 10, is refused in the same way with 10.0, and is saved with 12.5 where pictures are no videos.
# Date: 2026-11-29.
# Why it matters: controllers that run at 12.5 or 2.5 Hz exist (a divisor of 50 or 100 Hz), and a rate read from a YAML file is often a float.
#   An hour of teleoperation may be recorded before the first error. An exporter has to resample to a whole rate, and to give an `int`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/rates.py" <<'PYTHON'
import sys

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

PICTURE = {"shape": (64, 64, 3), "names": ["height", "width", "channels"]}
for fps, kind in ((12.5, "video"), (10, "video"), (10.0, "video"), (12.5, "image")):
    action = {"dtype": "float32", "shape": (2,), "names": ["a", "b"]}
    features = {"action": action, "observation.images.front": {"dtype": kind, **PICTURE}}
    folder = f"{sys.argv[1]}/{kind}_{fps!r}"
    data = LeRobotDataset.create("user/name", fps=fps, root=folder, features=features, use_videos=kind == "video")
    for shade in range(20):
        picture = np.full((64, 64, 3), shade, np.uint8)
        data.add_frame({"action": np.zeros(2, np.float32), "observation.images.front": picture, "task": "lift"})
    try:
        data.save_episode()
        end = "saved"
    except Exception as error:
        end = f"{type(error).__name__}: {error}"
    print(f"fps={fps!r}, {kind}: {end}")
PYTHON
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'lerobot==0.4.4'
seen=$("$folder/venv/bin/python" "$folder/rates.py" "$folder" 2> "$folder/log" | grep '^fps=')
echo "$seen"
expected="fps=12.5, video: AttributeError: 'float' object has no attribute 'numerator'
fps=10, video: saved
fps=10.0, video: AttributeError: 'float' object has no attribute 'numerator'
fps=12.5, image: saved"
[ "$seen" = "$expected" ] || { echo "the behaviour has changed"; exit 1; }
# Output, 2026-11-29:
#   fps=12.5, video: AttributeError: 'float' object has no attribute 'numerator'
#   fps=10, video: saved
#   fps=10.0, video: AttributeError: 'float' object has no attribute 'numerator'
#   fps=12.5, image: saved
