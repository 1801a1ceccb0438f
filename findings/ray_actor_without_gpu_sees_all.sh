#!/usr/bin/env bash
# A Ray actor that asks for no GPU sees every GPU of its machine.
#
# Versions: ray 2.60.0; Python 3.11, Debian 12. No GPU is needed: the cluster is told that it has two.
# Expected: an actor with `num_gpus=0` gets an empty `CUDA_VISIBLE_DEVICES`, as in earlier releases, so that a process beside the model
#   servers cannot take memory of a GPU that Ray has given to another.
# Seen: the variable is what the driver had ("0,1"); one with `num_gpus=1` gets its own index alone.
# Date: 2026-11-29.
# Why it matters: a scheduler, a recorder or a CPU policy that merely imports PyTorch and picks `cuda` where it is available lands on
#   somebody's GPU, and the placement that Ray planned no longer holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'ray==2.60.0'
cat > "$folder/ask.py" <<'PYTHON'
import os
import sys

import ray

os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)


@ray.remote
class Worker:
    def visible(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES")


without = ray.get(Worker.options(num_gpus=0).remote().visible.remote())
one = ray.get(Worker.options(num_gpus=1).remote().visible.remote())
ray.shutdown()
print(f"num_gpus=0: {without!r}, num_gpus=1: {one!r}")
if (without, one) not in {("0,1", "0"), ("0,1", "1")}:
    sys.exit("the behaviour has changed")
PYTHON
RAY_USAGE_STATS_ENABLED=0 "$folder/venv/bin/python" "$folder/ask.py" 2> /dev/null
# Output, 2026-11-29: num_gpus=0: '0,1', num_gpus=1: '0'
