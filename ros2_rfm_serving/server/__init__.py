"""Model server of one GPU: sessions, mailboxes, dispatch and the engine loop."""

from ros2_rfm_serving.server.config import ServerConfig
from ros2_rfm_serving.server.core import ServerCore
from ros2_rfm_serving.server.engine_queues import EngineConfig, RunningBatch
from ros2_rfm_serving.server.figures import ServerSnapshot
from ros2_rfm_serving.server.loop import Ended, EngineLoop
from ros2_rfm_serving.server.server import ModelServer
from ros2_rfm_serving.server.sessions import SessionRules

__all__ = [
    "Ended",
    "EngineLoop",
    "ModelServer",
    "ServerCore",
    "ServerConfig",
    "ServerSnapshot",
    "SessionRules",
    "EngineConfig",
    "RunningBatch",
]
