"""Connection to a running Ray cluster, or to a local one for the lifetime of a factory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.on_ray.head import ADDRESS, LOCAL, reach
from ros2_rfm_serving.operate.on_ray.planning import ClusterNode, Layout

KNOCK_S = 5.0
OBJECT_STORE_BYTES = 100 << 20
"""Object store of a local cluster, which this package does not use."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    address: str
    own: str
    """Address of this machine, as the cluster sees it."""
    nodes: tuple[ClusterNode, ...]
    """Nodes that are alive."""

    def place(self, layout: Layout) -> Any:
        """Create a placement group; it waits while other users occupy the resources."""
        return ray.util.placement_group(
            [dict(bundle.resources) for bundle in layout.bundles],
            strategy=layout.strategy.value,
            bundle_label_selector=[_selector(bundle.labels) for bundle in layout.bundles],
        )


@contextmanager
def joined(address: str, layout: Layout) -> Iterator[Cluster]:
    """Join a cluster, in a namespace of its own, so that factories may have actors of the same names.
    Raises: `ConfigurationError` where no cluster answers."""
    reached = _connect(address, layout)
    try:
        yield Cluster(address=reached, own=ray.util.get_node_ip_address(), nodes=nodes())
    finally:
        ray.shutdown()


def _connect(address: str, layout: Layout) -> str:
    """Connect, and return the address of the cluster."""
    own = {"num_cpus": max(os.cpu_count() or 1, int(layout.total_cpus) + 1), "object_store_memory": OBJECT_STORE_BYTES}
    own |= {"include_dashboard": False}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        reach(address, KNOCK_S)  # Ray itself would wait for minutes, and then end this process
        context = ray.init(address, log_to_driver=False, logging_level="warning", **(own if address == LOCAL else {}))
        return str(context.address_info["gcs_address"])
    # SystemExit: Ray ends the process when something else listens there.
    except (RuntimeError, ValueError, OverflowError, OSError, SystemExit) as error:
        fix = (
            f"name a cluster that runs (`ray status`), or neither give --ray-address nor set {ADDRESS}: then a local one is started"
        )
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        problem = f"no Ray cluster at {address!r}: {why}"
        raise ConfigurationError(problem, key="--ray-address", fix=fix) from None
    finally:
        for number, handler in handlers.items():  # Ray replaces the handler of SIGTERM
            signal.signal(number, handler)


def nodes() -> tuple[ClusterNode, ...]:
    return tuple(
        ClusterNode(address=node["NodeManagerAddress"], resources=node["Resources"], labels=node["Labels"])
        for node in ray.nodes()
        if node["Alive"]
    )


def _selector(labels: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {name: f"in({','.join(values)})" for name, values in labels.items()}
