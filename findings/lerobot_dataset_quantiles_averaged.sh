#!/usr/bin/env bash
# LeRobot averages the quantiles of episodes when it makes the statistics of a data set: its `q01` and `q99` are no quantiles of the data.
#
# Versions: lerobot 0.4.4; Python 3.11, Debian 12. Read and not run: its main branch of 2026-08-23 (7427f31) takes the least of the low quantiles
#   and the greatest of the high ones, so that statistics of one data set differ by release.
# Expected: `q01` and `q99` of a data set bound 98 % of its values, as the names say; `min`, `max`, `mean` and `std` are aggregated rightly.
# Seen: half of the episodes have an action near 0, half near 10. The data set's `q01` is 4.8 and its `q99` 5.2: not one value lies between
#   them. `min`, `max`, `mean` and `std` are right.
# Date: 2026-11-29.
# Why it matters: policies that normalise by quantiles (pi0.5, and others with `QUANTILES`) map q01..q99 to -1..1. A joint or a gripper that
#   stays in one place during an episode, and in another during the next, is stretched by far too much: 10 becomes 21 here. A program that reads
#   `meta/stats.json` to serve such a policy must take these values, and not compute quantiles of the data again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/quantiles.py" <<'PYTHON'
import numpy as np
from lerobot.datasets.compute_stats import aggregate_stats, compute_episode_stats

FEATURES = {"action": {"dtype": "float32", "shape": (1,), "names": ["joint"]}}
random = np.random.default_rng(0)
episodes = [centre + 0.1 * random.normal(size=(1000, 1)).astype(np.float32) for centre in (0.0, 10.0)]
both = np.concatenate(episodes)
found = aggregate_stats([compute_episode_stats({"action": actions}, FEATURES) for actions in episodes])["action"]
for name, true in (("q01", np.quantile(both, 0.01)), ("q99", np.quantile(both, 0.99)), ("mean", both.mean()), ("max", both.max())):
    print(f"{name}: {float(found[name][0]):.1f}, of the data {float(true):.1f}")
between = np.mean((both > found["q01"]) & (both < found["q99"]))
print(f"values between q01 and q99: {between:.0%}")
PYTHON
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'lerobot==0.4.4'
seen=$("$folder/venv/bin/python" "$folder/quantiles.py")
echo "$seen"
expected='q01: 4.8, of the data -0.2
q99: 5.2, of the data 10.2
mean: 5.0, of the data 5.0
max: 10.3, of the data 10.3
values between q01 and q99: 0%'
[ "$seen" = "$expected" ] || { echo "the behaviour has changed"; exit 1; }
# Output, 2026-11-29:
#   q01: 4.8, of the data -0.2
#   q99: 5.2, of the data 10.2
#   mean: 5.0, of the data 5.0
#   max: 10.3, of the data 10.3
#   values between q01 and q99: 0%
