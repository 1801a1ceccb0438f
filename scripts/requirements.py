"""Prints the requirements that pyproject.toml declares: the package's own, the named extras, and `build` for its build system's.

python scripts/requirements.py pyproject.toml torch dev build
"""

import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

project = tomllib.loads(Path(sys.argv[1]).read_text())
wanted = list(project["project"]["dependencies"])
for extra in sys.argv[2:]:
    wanted += project["build-system"]["requires"] if extra == "build" else project["project"]["optional-dependencies"][extra]
print("\n".join(wanted))
