"""One GPU: sessions, mailboxes, dispatch, `step()`."""

from ros2_rfm_serving.server.figures import ServerSnapshot
from ros2_rfm_serving.server.server import ModelServer, ServerConfig, Work
from ros2_rfm_serving.server.sessions import SessionRules

__all__ = ["ModelServer", "ServerConfig", "ServerSnapshot", "SessionRules", "Work"]
