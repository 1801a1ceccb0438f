"""vLLM-Omni's own connection code around `pipeline.py`: its files are read from a checkout, nothing of it is here.

In an environment with fastapi, uvicorn, websockets, msgspec, numpy and omegaconf; neither vLLM nor the rest of vLLM-Omni is needed:

    python source.py VLLM_OMNI_CHECKOUT [idle_s]        prints the port
"""

from __future__ import annotations

import ast
import importlib.util
import logging
import socket
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE, OPENPI = Path(__file__).parent, "vllm_omni.entrypoints.openpi"


def main(checkout: Path, idle_s: float) -> None:
    import uvicorn
    from fastapi import FastAPI, WebSocket

    serving, connection = _load(checkout)
    connection.RobotRealtimeConnection.__init__.__defaults__ = (idle_s,)
    app = FastAPI()
    app.state.openai_serving_realtime_robot = serving.ServingRealtimeRobotOpenPI(_Client(), "fake")
    route = _endpoint(checkout, WebSocket)
    app.websocket("/v1/realtime/robot/openpi")(route)
    none = FastAPI()
    none.websocket("/v1/realtime/robot/openpi")(route)
    app.mount("/none", none)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="critical")).run([listening])


class _Client:
    """What stands for `AsyncOmni`."""

    def __init__(self) -> None:
        self.pipeline = _module("pipeline", HERE / "pipeline.py")

    def get_diffusion_od_config(self) -> Any:
        return SimpleNamespace(model_config={"policy_server_config": self.pipeline.ANNOUNCED})

    async def generate(self, *, prompt: Any, request_id: str, sampling_params_list: list[Any]) -> Any:
        said = sampling_params_list[0].extra_args
        found = self.pipeline.actions(said["robot_obs"], said["session_id"], said["reset"])
        yield SimpleNamespace(multimodal_output={"actions": found})


def _load(checkout: Path) -> tuple[Any, Any]:
    """Its serving and connection modules, with the names that they import from elsewhere."""
    sys.modules.update({name: types.ModuleType(name) for name in ("vllm", "vllm.logger", *_parents(OPENPI))})
    sys.modules["vllm.logger"].init_logger = logging.getLogger
    for name, kind in (
        ("vllm_omni.diffusion.request", "OmniDiffusionRequest"),
        ("vllm_omni.inputs.data", "OmniDiffusionSamplingParams"),
    ):
        sys.modules.update({parent: types.ModuleType(parent) for parent in _parents(name) if parent not in sys.modules})
        setattr(sys.modules[name], kind, SimpleNamespace)
    logging.disable(logging.CRITICAL)
    folder = checkout / Path(*OPENPI.split("."))
    serving = _module(f"{OPENPI}.serving", folder / "serving.py")
    return serving, _module(f"{OPENPI}.connection", folder / "connection.py")


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _endpoint(checkout: Path, websocket: Any) -> Any:
    """The function of `api_server.py` that answers there, without the module around it."""
    file = checkout / "vllm_omni/entrypoints/openai/api_server.py"
    name = "realtime_robot_openpi"
    (found,) = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.AsyncFunctionDef) and node.name == name]
    found.decorator_list = []
    scope: dict[str, Any] = {"WebSocket": websocket}
    exec(compile(ast.Module([found], []), str(file), "exec"), scope)
    return scope[name]


def _module(name: str, file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 30.0)
