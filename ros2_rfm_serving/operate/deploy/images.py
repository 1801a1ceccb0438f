"""Dockerfile with a target per image: robots and planning, servers with their engines' packages, simulated robots."""

from __future__ import annotations

from ros2_rfm_serving.operate.deploy.options import ACCOUNT, CACHE, PREFIX, USER_ID
from ros2_rfm_serving.operate.deploy.processes import Plan, Role
from ros2_rfm_serving.worlds.rendering import RENDERER_PACKAGES

PYTHON = "3.11"
"""Python version with which the project is tested; wheels of ROS exist for others too."""
EXTRAS = {"bundle": "torch", "lerobot": "lerobot", "jax": "jax", "vllm": "vllm", "openai": "openai", "remote": "gateway"}
"""Engine -> extra of this package. A user's own engine brings its packages in a user's own layer."""
IGNORED = ".git\n.venv*\nbuild\ninstall\nlog\nlogs\nrecordings\ntest\n**/__pycache__\n"
"""Files of a checkout that an image does not need."""


def dockerfile(plan: Plan) -> str:
    builds = [
        _BUILDER,
        _target("robot", [*everywhere(plan), "metrics"], about="Scheduler, robots, foreman, probes: without PyTorch."),
    ]
    builds.append(_target("server", server_extras(plan), about="Model servers.", environment=_NVIDIA if _has_gpu(plan) else ""))
    if plan.has(Role.WORLD):
        builds.append(
            _target("simulator", simulator_extras(plan), about="Simulated robots, drawn off screen.", packages=RENDERER_PACKAGES)
        )
    return "\n".join(builds)


def targets(plan: Plan) -> list[str]:
    return ["robot", "server", *(["simulator"] if plan.has(Role.WORLD) else [])]


def everywhere(plan: Plan) -> list[str]:
    """Return the extras that every process needs."""
    return [*(["security"] if plan.options.security else []), *(["zenoh"] if plan.factory.zenoh_hosts else [])]


def server_extras(plan: Plan) -> list[str]:
    doors = plan.options.door or any(group.overflow for group in plan.factory.server_cluster)
    own = {EXTRAS[engine] for engine in plan.engines if engine in EXTRAS}
    return sorted({"metrics", *everywhere(plan), *own, *(["gateway"] if doors else [])})


def simulator_extras(plan: Plan) -> list[str]:
    return ["metaworld", *everywhere(plan)]


def _has_gpu(plan: Plan) -> bool:
    return any(process.gpu for process in plan.processes)


def _target(name: str, extras: list[str], *, about: str, environment: str = "", packages: str = "") -> str:
    install = f"RUN {_APT} {packages} && rm -rf /var/lib/apt/lists/*\n" if packages else ""
    return _TARGET.format(
        python=PYTHON,
        name=name,
        about=about,
        extras=",".join(extras),
        prefix=PREFIX,
        user=USER_ID,
        account=ACCOUNT,
        cache=CACHE,
        packages=install,
        more=environment,
    )


_APT = "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
_NVIDIA = "ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility\n"
_BUILDER = f"""\
# Written by `rfm deploy`. The context is a checkout of rfm_serving; README.md has the commands.
# ROS 2 comes from the package index, as wheels.
FROM python:{PYTHON}-slim AS builder
RUN {_APT} g++ cmake && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source
"""
_TARGET = """\
# {about}
FROM python:{python}-slim AS {name}
{packages}RUN --mount=type=bind,from=builder,source=/wheels,target=/wheels \\
    python -m venv {prefix} && {prefix}/bin/pip install --no-cache-dir "$(echo /wheels/*.whl)[{extras}]"
# Fast DDS takes whoever has the same machine id to share its memory; libraries ask for their user's name.
RUN rm -f /etc/machine-id && useradd --uid {user} --user-group --no-create-home --shell /usr/sbin/nologin {account} \\
    && install -d -o {user} -g {user} -m 700 {cache}
{more}ENV PATH={prefix}/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1
USER {user}:{user}
WORKDIR /tmp
"""
