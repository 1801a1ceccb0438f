"""A server for chat completions that does what a test tells it to, and the engine that asks it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.engines.text.openai import OpenAIEngine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.types import SAFETY, EncodedImage, EngineReply, InferenceRequest, RequestId, empty

JPEG = simplejpeg.encode_jpeg(np.full((16, 24, 3), 90, np.uint8), colorspace="RGB")


def spec(engine: str = "openai", output: str = "judgement", cameras: tuple[str, ...] = ("front",), **options: Any) -> EngineSpec:
    if engine == "openai":
        options = {"base_url": "http://127.0.0.1:9/v1", "timeout_s": 5.0, **options}
    return EngineSpec(
        model="judge",
        entry=CatalogueEntry(engine=engine, output=output, cameras=cameras, options=options),
        models_folder=Path(),
        profile=Profile({}),
        gpu_type="CPU",
        wait=time.sleep,
    )


@dataclass
class Turn:
    """What the server does with one request."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    first_s: float = 0.0
    """Before it answers."""
    byte_s: float = 0.0
    """Between bytes."""


def says(content: str | None, finish: str = "stop", **more: Any) -> Turn:
    return Turn(json.dumps({"choices": [{"message": {"content": content}, "finish_reason": finish, **more}]}).encode())


Script = Callable[[dict[str, Any], int], Turn]


@contextmanager
def server(script: Script) -> Iterator[tuple[str, list[tuple[dict[str, Any], dict[str, str]]]]]:
    """Its address, and what it was asked: body and headers. `script` sees the body and how many requests came before."""
    asked: list[tuple[dict[str, Any], dict[str, str]]] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(asked)
                asked.append((body, dict(self.headers)))
            turn = script(body, number)
            time.sleep(turn.first_s)
            try:
                self._send(turn)
            except OSError:
                self.close_connection = True  # the client gave up

        def _send(self, turn: Turn) -> None:
            if turn.status == 0:
                self.close_connection = True
                return
            self.send_response(turn.status)
            for name, value in {"Content-Length": str(len(turn.body)), **turn.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            for i in range(0, len(turn.body), step := 1 if turn.byte_s else max(len(turn.body), 1)):
                self.wfile.write(turn.body[i : i + step])
                self.wfile.flush()
                time.sleep(turn.byte_s)

        def log_message(self, format: str, *args: Any) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1", asked
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@contextmanager
def engine(url: str, **options: Any) -> Iterator[OpenAIEngine]:
    built = build_engine(spec(base_url=url, **options))
    assert isinstance(built, OpenAIEngine)
    try:
        yield built
    finally:
        built.close()


def request(component: str = SAFETY, instruction: str = "stack the boxes. Is the workcell safe?") -> InferenceRequest:
    return InferenceRequest(
        id=RequestId(robot="r1", component=component, session_epoch=1, episode=1, sequence=1),
        instruction=instruction,
        state=empty(0),
        images={"front": EncodedImage(camera="front", format="jpeg", data=JPEG)},
        inference_delay_steps=0,
        prefix_model=empty(0, 0),
    )


def only(answers: list[EngineReply | ModelError]) -> EngineReply:
    (answer,) = answers
    assert isinstance(answer, EngineReply)
    return answer
