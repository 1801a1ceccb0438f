"""For tools that ask for one; `pip` reads pyproject.toml and `colcon` CMakeLists.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

found = re.search(r"<version>([^<]+)</version>", Path(__file__).with_name("package.xml").read_text())
assert found, "package.xml has no <version>"
setup(name="ros2-rfm-serving", version=found.group(1), packages=find_packages(include=("ros2_rfm_serving", "ros2_rfm_serving.*")))
