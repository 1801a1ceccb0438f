"""Ray Serve: a deployment with `@serve.batch`, called through its handle from a driver on the same cluster."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray import serve as ray_serve

MAX_BATCH_SIZE, MAX_ONGOING = 32, 128
BATCH_WAIT_S = 0.0
"""Batch delay of Ray, whose default of 10 ms would be added for one client."""
APPLICATION, DEPLOYMENT = "default", "Policy"


def serve(infer: Callable[..., Any], port: int, ready: Callable[[], None]) -> None:
    class Policy:
        @ray_serve.batch(max_batch_size=MAX_BATCH_SIZE, batch_wait_timeout_s=BATCH_WAIT_S)
        async def infer(self, requests: list[dict[str, Any]]) -> list[Any]:
            images = [[value for value in request.values() if isinstance(value, bytes)] for request in requests]
            return infer([request["state"] for request in requests], images)

        async def ask(self, request: dict[str, Any]) -> Any:
            return await self.infer(request)

        async def __call__(self, request: Any) -> Any:
            from peer_ray_http import answer, read

            return answer(await self.infer(read(await request.body())))

    beside = {"PYTHONPATH": str(Path(__file__).resolve().parent)}
    ray.init(include_dashboard=False, log_to_driver=False, namespace="bench", runtime_env={"env_vars": beside})
    ray_serve.start(http_options={"host": "127.0.0.1", "port": port})
    policy = ray_serve.deployment(name=DEPLOYMENT, max_ongoing_requests=MAX_ONGOING)(Policy)
    ray_serve.run(policy.bind(), name=APPLICATION)
    ready()
    signal.pause()


def connect(port: int, images: dict[str, bytes]) -> Callable[[Any], Any]:
    if not ray.is_initialized():
        ray.init(address="auto", namespace="bench", log_to_driver=False)
    handle = ray_serve.get_deployment_handle(DEPLOYMENT, APPLICATION)

    def request(state: Any) -> Any:
        return handle.ask.remote({"state": state, "prompt": "pick it up", **images}).result(timeout_s=30)

    return request
