"""`python -m test.drawn 0 500 [--kinds serves,order] [--to FILE]`: plans and checks factories; one line for each violation."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from .checks import Checks, Violation
from .factories import drawn_factory, stretched_catalogue

SHIPPED = Path(__file__).resolve().parents[2] / "config" / "profiles"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--to", type=Path)
    chosen = parser.parse_args()
    kinds = frozenset(filter(None, chosen.kinds.split(",")))
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        checks = Checks(SHIPPED, *stretched_catalogue(SHIPPED, Path(folder)))
        for seed in range(chosen.first, chosen.end):
            began_s = time.process_time()
            try:
                violations = checks.of(drawn_factory(seed), kinds)
            except Exception as error:
                violations = [Violation(seed, "error", f"{type(error).__name__}: {error}")]
            found.update(violation.kind for violation in violations)
            lines = [str(violation) for violation in violations] or [f"{seed} ok"]
            print(*lines, f"# {seed}: {time.process_time() - began_s:.1f} s", sep="\n", flush=True)
            if chosen.to and violations:
                with chosen.to.open("a") as file:
                    file.writelines(f"{violation}\n" for violation in violations)
    print(f"factories {chosen.first} to {chosen.end - 1}: {dict(found) or 'no violation'}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
