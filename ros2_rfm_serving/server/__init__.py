"""One GPU: sessions, mailboxes, dispatch, `step()`."""

from ros2_rfm_serving.server.server import ModelServer, ServerConfig, ServerSnapshot

__all__ = ["ModelServer", "ServerConfig", "ServerSnapshot"]
