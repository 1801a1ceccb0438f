"""`pytest test/gpu --device cuda`: real PyTorch on a real device. On a CPU the same code, eagerly where nothing can be recorded."""

from __future__ import annotations

import pytest
import torch

DEVICE, REQUESTS = "--device", "--requests"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(DEVICE, default="auto", help="cpu, cuda, cuda:1; auto: the first GPU, or the CPU")
    parser.addoption(REQUESTS, type=int, default=400, help="of the test of memory")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.gpu)


def pytest_configure() -> None:
    """A GPU's convolutions round to 10 bits unless they are asked not to, in ways that differ between batches."""
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    asked = str(pytestconfig.getoption(DEVICE))
    return ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked


@pytest.fixture(scope="session")
def requests_count(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption(REQUESTS))


def pytest_report_header(config: pytest.Config) -> str:
    return f"device: {config.getoption(DEVICE)}, PyTorch {torch.__version__}"
