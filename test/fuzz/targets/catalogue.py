"""`factory/catalogue.py`: the models and what they need."""

from __future__ import annotations

import numpy as np

from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.factory import Catalogue
from test.fuzz.targets.files import CONFIG, explained, written

MAX_SEED_LINES = 40


def seeds() -> list[bytes]:
    shipped = (CONFIG / "profiles" / "models.yaml").read_text(encoding="utf-8")
    parts = shipped.split("\n\n")
    return [shipped.encode(), *("\n".join(part.splitlines()[:MAX_SEED_LINES]).encode() for part in parts)]


def check(data: bytes) -> None:
    try:
        catalogue = Catalogue.load(written(data, "models.yaml"))
    except ConfigurationError as error:
        explained(error)
        return
    for name, entry in catalogue.models.items():
        assert catalogue[name] is entry
        for gpu, footprint in entry.gpus.items():
            assert catalogue.footprint(name, gpu) is footprint and isinstance(catalogue.fits(name, gpu), bool)
            if footprint.service:
                assert footprint.service.law().draw_s(1, np.random.default_rng(0)) >= 0
    try:
        catalogue["no such model"]
    except ModelError as error:
        explained(error)
