"""Text of `--help` of a node's executable."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from ros2_rfm_serving.ros.node.parameters import Spec

WIDTH = 120
USAGE = """\
usage: ros2 run rfm_serving {name} --ros-args [-p NAME:=VALUE] [--params-file FILE] [-r __ns:=/NAMESPACE] [--log-level LEVEL]

{about}

Exit code: 0 after SIGINT or SIGTERM; 78 when arguments, parameters or files cannot be used; 1 when it failed."""
ASK = "\nParameters: while it runs, `ros2 param list` and `ros2 param describe` say what they mean."


def usage(about: str, parameters: Mapping[str, Spec]) -> str:
    """Return the help text. about: docstring of the node's module."""
    head = USAGE.format(name=Path(sys.argv[0]).stem, about=about.strip())
    return "\n".join([head, "\nParameters:", *(_line(*one) for one in parameters.items())] if parameters else [head, ASK])


def _line(name: str, spec: Spec) -> str:
    text = f"{name} ({spec.wanted}; {_written(spec.default)}): {spec.description}"
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="      ")


def _written(default: object) -> str:
    if default in ("", [], [""]):
        return "empty"
    return str(default).lower() if isinstance(default, bool) else str(default)
