"""Says whether what goes to a borrowed machine is small enough: python scripts/carried.py FOLDER_OF_WHEELS

Counted are the tracked files of this repository, and the wheels beside them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT_BYTES = 64 * 2**20
"""Of all that is carried"""
WHEELS_BYTES = 8 * 2**20
"""Of it, for wheels: a checkout stays this far below the limit, whether or not wheels were fetched."""
ROOT = Path(__file__).resolve().parent.parent


def tracked_bytes(root: Path = ROOT) -> int:
    """Return the size of the files that git tracks, as they are in the checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    files = [root / name.decode() for name in listed.split(b"\0") if name]
    return sum(file.lstat().st_size for file in files if file.is_symlink() or file.is_file())


def wheels_bytes(folder: Path) -> int:
    """Return the size of the wheels of a folder."""
    return sum(file.stat().st_size for file in folder.glob("*.whl"))


def problem(tracked: int, wheels: int) -> str:
    """Return what is too large; empty: nothing is."""
    if not wheels:
        return "there are no wheels"
    if wheels > WHEELS_BYTES:
        return f"wheels of {mb(wheels)}, and {mb(WHEELS_BYTES)} is the most"
    if tracked + wheels > LIMIT_BYTES:
        return f"tracked files of {mb(tracked)} and wheels of {mb(wheels)}, and {mb(LIMIT_BYTES)} is the most"
    return ""


def mb(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def main() -> int:
    tracked, wheels = tracked_bytes(), wheels_bytes(Path(sys.argv[1]))
    if found := problem(tracked, wheels):
        print(f"error: {found}", file=sys.stderr)
        return 1
    print(f"tracked files {mb(tracked)} + wheels {mb(wheels)}: {mb(tracked + wheels)} of {mb(LIMIT_BYTES)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
