#!/usr/bin/env bash
# LeRobot takes statistics for a checkpoint's processors and uses the checkpoint's own without a word.
#
# Versions: lerobot 0.4.4; Python 3.11, Debian 12. Read and not run: a later commit of its main branch, 01f50c3, drops them for every policy but
#   GR00T's as well.
# Expected: `make_pre_post_processors(config, pretrained_path=..., dataset_stats=...)` normalises with the statistics that it is given, as it does
#   without `pretrained_path`, or refuses to take both.
# Seen: the checkpoint's statistics are used. An action of 1.0, one standard deviation, is 15.0 on a robot with mean 10 and deviation 5, and
#   comes out as 1.0; that robot's mean state of 10.0 goes into the network as 10.0 instead of 0.0. No error, no warning. Only
#   `preprocessor_overrides` and `postprocessor_overrides` that name the two steps change the statistics. GR00T's processors alone
#   get `dataset_stats` in this call (read, not run), so that the same line of a server works for one policy and not for the next.
# Date: 2026-11-30.
# Why it matters: one checkpoint for several robots, each with the statistics of its own data set, is what a fleet's server does with this call. The
#   actions that come back are in the units of another robot's data: finite, smooth and wrong. What a server denormalises with has
#   to be read back from the processors, and compared with what was asked for, before a robot gets an action.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/processors.py" <<'PYTHON'
import sys

import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.factory import make_pre_post_processors

CONFIG = ACTConfig(
    device="cpu",
    input_features={
        "observation.state": PolicyFeature(FeatureType.STATE, (1,)),
        "observation.environment_state": PolicyFeature(FeatureType.ENV, (1,)),
    },
    output_features={"action": PolicyFeature(FeatureType.ACTION, (1,))},
)


def statistics(mean, deviation):
    one = {"mean": torch.tensor([mean]), "std": torch.tensor([deviation])}
    return {"observation.state": one, "action": one}


def seen(**options):
    before, after = make_pre_post_processors(CONFIG, **options)
    state = before({"observation.state": torch.tensor([10.0])})["observation.state"].item()
    return f"state 10.0 is {state:.1f} to the network, its action 1.0 is {after(torch.tensor([[1.0]])).item():.1f} to the robot"


checkpoint = sys.argv[1]
for processor in make_pre_post_processors(CONFIG, dataset_stats=statistics(0.0, 1.0)):
    processor.save_pretrained(checkpoint)
robot = statistics(10.0, 5.0)
overrides = {
    "preprocessor_overrides": {"normalizer_processor": {"stats": robot}},
    "postprocessor_overrides": {"unnormalizer_processor": {"stats": robot}},
}
print("new, dataset_stats:", seen(dataset_stats=robot))
print("checkpoint:", seen(pretrained_path=checkpoint))
print("checkpoint, dataset_stats:", seen(pretrained_path=checkpoint, dataset_stats=robot))
print("checkpoint, overrides:", seen(pretrained_path=checkpoint, **overrides))
PYTHON
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'lerobot==0.4.4'
seen=$(HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore "$folder/processors.py" "$folder/checkpoint" 2> "$folder/log")
echo "$seen"
expected='new, dataset_stats: state 10.0 is 0.0 to the network, its action 1.0 is 15.0 to the robot
checkpoint: state 10.0 is 10.0 to the network, its action 1.0 is 1.0 to the robot
checkpoint, dataset_stats: state 10.0 is 10.0 to the network, its action 1.0 is 1.0 to the robot
checkpoint, overrides: state 10.0 is 0.0 to the network, its action 1.0 is 15.0 to the robot'
[ "$seen" = "$expected" ] || { echo "the behaviour has changed"; exit 1; }
# Output, 2026-11-30:
#   new, dataset_stats: state 10.0 is 0.0 to the network, its action 1.0 is 15.0 to the robot
#   checkpoint: state 10.0 is 10.0 to the network, its action 1.0 is 1.0 to the robot
#   checkpoint, dataset_stats: state 10.0 is 10.0 to the network, its action 1.0 is 1.0 to the robot
#   checkpoint, overrides: state 10.0 is 0.0 to the network, its action 1.0 is 15.0 to the robot
