"""Model server of one GPU: sessions, mailboxes, dispatch and the engine loop."""

from ros2_rfm_serving.server.brain import ServerBrain
from ros2_rfm_serving.server.config import ServerConfig
from ros2_rfm_serving.server.figures import ServerSnapshot
from ros2_rfm_serving.server.loop import Ended, EngineLoop
from ros2_rfm_serving.server.server import ModelServer
from ros2_rfm_serving.server.sessions import SessionRules
from ros2_rfm_serving.server.tiers import Tier, Work

__all__ = ["Ended", "EngineLoop", "ModelServer", "ServerBrain", "ServerConfig", "ServerSnapshot", "SessionRules", "Tier", "Work"]
