"""Starts the quickstart with its web page, waits until its robots have done some tasks, and takes docs/figures/dashboard.png.

python scripts/dashboard_figure.py [FILE] [light|dark]
"""

from __future__ import annotations

import io
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

WORK_S = 40.0
SIZE = {"width": 1280, "height": 860}
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


def main(file: Path, scheme: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "up", "--dashboard", "0", "--domain", "117"]
    factory = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert factory.stdout is not None
        url = next(found[0] for line in factory.stdout if (found := re.search(r"http://\S+/", line)))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            page.goto(url)
            for pill in ("pick_place_1", "door_open_1", "push_1"):
                page.locator(f'[data-key="{pill}"] .pill').filter(has_text="streaming").wait_for(timeout=120_000)
            time.sleep(WORK_S)
            picture = page.screenshot()
            browser.close()
    finally:
        factory.send_signal(signal.SIGINT)
        factory.communicate(timeout=60)
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(200).save(file, optimize=True)


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *("docs/figures/dashboard.png", "light")[len(sys.argv) - 1 :]]
    main(Path(arguments[0]), arguments[1])
