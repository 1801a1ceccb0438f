"""Unit tests run side by side on few cores: PyTorch's threads would wait for one another."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
