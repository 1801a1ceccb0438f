"""An embedded network as a bundle has it: as it computes here, and as it was saved. PyTorch."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import nn

from ros2_rfm_serving.engines.embedded.options import ON_CPU, BundleOptions

Network = TypeVar("Network", bound=nn.Module)


class Embedded(Generic[Network]):
    """What engines and models of such networks have in common."""

    def __init__(
        self,
        model: str,
        network: Network,
        content_hash: str,
        options: BundleOptions = ON_CPU,
        saved: Callable[[], Network] | None = None,
    ) -> None:
        """saved: reads the network as it was saved, for the reference; None: as it is here, copied."""
        self._network, self._options = network, options
        self._saved = saved or partial(copy.deepcopy, network)
        self._begin(model, content_hash)

    @abstractmethod
    def _begin(self, model: str, content_hash: str) -> None:
        """Moves and casts the network, and makes the contract."""

    @property
    def weights_dtype(self) -> torch.dtype:
        """Of all of them."""
        return next(self._network.parameters()).dtype

    @property
    def computed_by(self) -> str:
        """`Engine.computed_by`"""
        return self._options.computed_by
