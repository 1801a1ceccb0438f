"""Base class of engines and models around an embedded network, as it computes here and as it was saved. PyTorch."""

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
    """Parts that engines and models of embedded networks have in common."""

    def __init__(
        self,
        model: str,
        network: Network,
        content_hash: str,
        options: BundleOptions = ON_CPU,
        saved: Callable[[], Network] | None = None,
    ) -> None:
        """Create the model. saved: loads the network as it was saved, for the reference; None for a copy of the network here."""
        self._network, self._options = network, options
        self._saved = saved or partial(copy.deepcopy, network)
        self._begin(model, content_hash)

    @abstractmethod
    def _begin(self, model: str, content_hash: str) -> None:
        """Move and cast the network, and create the contract."""

    @property
    def weights_dtype(self) -> torch.dtype:
        """Dtype of all weights."""
        return next(self._network.parameters()).dtype

    @property
    def computed_by(self) -> str:
        """Options and hardware for `Engine.computed_by`."""
        return self._options.computed_by
