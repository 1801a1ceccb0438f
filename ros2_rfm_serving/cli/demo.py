"""`rfm demo`: the quickstart factory with its web page, after `pip install` and without a clone."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.run import run_factory
from ros2_rfm_serving.operate.running import Options, console, new_logs, quickstart
from ros2_rfm_serving.ros.node.process import ignore_signals

NEEDED = ("metaworld", "mujoco", "torch", "safetensors", "starlette", "uvicorn")
"""Modules of the extra `demo`: simulated arms, their policy, and the page."""


def demo(
    seconds: Annotated[float, typer.Option(min=0, help="End by itself after this time at work; 0: run until Ctrl-C")] = 0.0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser of this desktop, if there is one")] = True,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the web page, on this machine alone; 0: any")] = 0,
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
) -> None:
    """Shows a factory at work: three simulated arms, two model servers and a scheduler on this machine, and their web page.

    No GPU, no robot and no file of yours is needed. `rfm up my_factory.yaml` starts a factory of your own in the same way.

    Examples:  rfm demo   |   rfm demo --seconds 60 --no-browser

    Exit code: 0, 1 when a process kept failing, 2 when a package is missing.
    """
    if missing := [module for module in NEEDED if find_spec(module) is None]:
        fix = "pip install 'ros2-rfm-serving[demo]'"
        raise ConfigurationError(f"not installed: {', '.join(missing)}", key="rfm demo", fix=fix)
    from ros2_rfm_serving.factory import load_factory

    factory = load_factory(quickstart())
    options = Options(
        seconds=seconds,
        domain=domain,
        namespace=factory.discovery.namespace,
        logs=new_logs(),
        work={"end_on_score": False},
        dashboard=str(port),
        opens_browser=browser,
    )
    outcome = run_factory(factory, options)
    ignore_signals()  # nothing else remains to be done
    if outcome.failed:
        console.print(f"gave up on: {', '.join(outcome.failed)}", style="red", markup=False)
        raise typer.Exit(1)
