"""Tests that break the rules of test/conftest.py, for `test_conftest.py`: pytest collects them where they are named alone."""

from __future__ import annotations

import ctypes
import os

import pytest

from ros2_rfm_serving.security.own import ENCLAVE


def test_a_call_that_holds_the_global_lock_hangs() -> None:
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(256)  # zeros: one that nobody holds
    for _ in range(2):
        libc.pthread_mutex_lock(mutex)


@pytest.mark.parametrize("number", [1, 2])
def test_a_certificate_is_left_behind(number: int) -> None:
    assert ENCLAVE not in os.environ
    os.environ[ENCLAVE] = f"/nowhere/{number}"
