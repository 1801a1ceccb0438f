"""All files of a deployment."""

from __future__ import annotations

from ros2_rfm_serving.operate.deploy import compose, kubernetes, systemd
from ros2_rfm_serving.operate.deploy.images import IGNORED, dockerfile
from ros2_rfm_serving.operate.deploy.options import Kind
from ros2_rfm_serving.operate.deploy.processes import Plan
from ros2_rfm_serving.operate.deploy.readme import readme


def files(plan: Plan) -> dict[str, str]:
    """Return the files by their paths in the folder. Raises: `ConfigurationError`."""
    kinds = {Kind.KUBERNETES: kubernetes.manifests, Kind.COMPOSE: compose.manifests, Kind.SYSTEMD: systemd.manifests}
    written = kinds[plan.options.kind](plan)
    images = {"Dockerfile": dockerfile(plan), "Dockerfile.dockerignore": IGNORED} if plan.options.in_containers else {}
    return {"README.md": readme(plan), **images, **written}
