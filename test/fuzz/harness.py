"""One target under atheris, coverage-guided: python -m test.fuzz.harness TARGET [libFuzzer's options] [corpus folders]"""

from __future__ import annotations

import resource
import sys

import atheris

from test.fuzz import targets

MAX_ADDRESS_SPACE = 4 << 30
"""A single allocation that is out of proportion fails and is a finding, even if its memory is never touched."""


def main() -> None:
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["ros2_rfm_serving"]):
        chosen = targets.target(name)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    atheris.Setup([sys.argv[0], *options], chosen.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
