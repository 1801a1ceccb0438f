#!/usr/bin/env bash
# Ray Serve's model multiplexing unloads a model while a request still uses it, and unloads it a second time later.
#
# Versions: ray 2.60.0 with its extra `serve`; Python 3.11, Debian 12. No GPU is needed.
# Expected: a model that `@serve.multiplexed` gave to a request stays loaded until that request has ended. The next model waits for it, or is
#   loaded beside it. Its clean-up, `__del__`, runs once.
# Seen: with `max_num_models_per_replica=1`, a request for model B that comes during a request for model A calls `__del__` of A at once. The
#   request for A goes on without its weights and gets no error from Ray. When that request lets go of A, `__del__` of A runs again.
# Date: 2026-11-30.
# Why it matters: one GPU with several fine-tuned policies, or LoRA adapters, is what multiplexing is for, and a `__del__` that frees GPU memory
#   is what its documentation calls for. As soon as more robots with different policies act at one time than models are kept, one robot's chunk is
#   computed with weights that were freed. A second clean-up can take back what another model has got since.
#   A server has to count the users of each model itself and must not unload before the count is zero.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/share.py" <<'PYTHON'
import asyncio

import ray
from ray import serve


class Policy:
    def __init__(self, name, log):
        self.name, self.log, self.weights = name, log, "weights"

    async def act(self, until):
        self.log.append(f"{self.name} starts with {self.weights}")
        await asyncio.wait_for(until.wait(), 60.0)
        self.log.append(f"{self.name} ends with {self.weights}")

    def __del__(self):
        self.weights = None
        self.log.append(f"{self.name} is unloaded")


@serve.deployment(num_replicas=1, max_ongoing_requests=8)
class Server:
    def __init__(self):
        self.log, self.begun, self.other_acted = [], asyncio.Event(), asyncio.Event()

    @serve.multiplexed(max_num_models_per_replica=1)
    async def policy(self, name):
        return Policy(name, self.log)

    async def __call__(self):
        name = serve.get_multiplexed_model_id()
        policy = await self.policy(name)
        self.begun.set()
        if name == "B":
            self.other_acted.set()
        await policy.act(self.other_acted)

    async def wait_for_first(self):
        await asyncio.wait_for(self.begun.wait(), 60.0)

    async def story(self):
        return list(self.log)


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
server = serve.run(Server.bind(), name="policies", route_prefix=None)
first = server.options(multiplexed_model_id="A").remote()
server.wait_for_first.remote().result(timeout_s=60)
second = server.options(multiplexed_model_id="B").remote()
first.result(timeout_s=60)
second.result(timeout_s=60)
story = server.story.remote().result(timeout_s=60)
serve.shutdown()
ray.shutdown()
print("\n".join(line for line in story if line.startswith("A ")))
PYTHON
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'ray[serve]==2.60.0'
seen=$(RAY_USAGE_STATS_ENABLED=0 "$folder/venv/bin/python" "$folder/share.py" 2> "$folder/log" | grep '^A ')
echo "$seen"
expected='A starts with weights
A is unloaded
A ends with None
A is unloaded'
[ "$seen" = "$expected" ] || { echo "the behaviour has changed"; exit 1; }
# Output, 2026-11-30:
#   A starts with weights
#   A is unloaded
#   A ends with None
#   A is unloaded
