"""One GPU: sessions, mailboxes, dispatch, `step()`."""

from ros2_rfm_serving.server.figures import ServerSnapshot
from ros2_rfm_serving.server.server import ModelServer, ServerConfig, Work

__all__ = ["ModelServer", "ServerConfig", "ServerSnapshot", "Work"]
