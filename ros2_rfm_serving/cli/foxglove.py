"""`rfm foxglove`: a running factory, live, for Foxglove."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.running import console, prepare_environment, spinning, stop_signals

PORT = 8765


def foxglove(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the websocket; 0: any")] = PORT,
    address: Annotated[str, typer.Option(help="To listen on; 0.0.0.0: everybody may look")] = "127.0.0.1",
    control: Annotated[bool, typer.Option(help="Services may be called and parameters set by whoever connects")] = False,
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Of the factory whose words are proven where there are certificates")] = "",
) -> None:
    """Serves the graph to Foxglove until Ctrl-C: every topic with its definition, its bytes unchanged, received only while a
    client subscribes; parameters; with --control also services. config/foxglove/factory.json is a layout. With
    RFM_SERVING_ENCLAVE schedules and statuses are shown when they are verified, and all other topics are marked.

    Example:  rfm foxglove, then in Foxglove: Open connection, ws://localhost:8765

    Exit code: 0, or 2 when the port is taken.
    """
    prepare_environment(domain)
    with needing("foxglove", "rfm foxglove"):
        from ros2_rfm_serving.ros.foxglove_bridge import Bridge

    def make() -> Bridge:
        try:
            return Bridge(address, port, control=control, fleet_namespace=namespace)
        except (OSError, RuntimeError) as error:
            problem = f"{address}:{port} cannot be listened on: {error}"
            raise ConfigurationError(problem, key="--port", fix="choose another port, or 0 for any") from None

    stop = threading.Event()
    with stop_signals(stop), spinning(make) as bridge:
        console.print(f"ws://{address}:{bridge.port}")
        stop.wait()
