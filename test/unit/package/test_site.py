"""The documentation site: its build fails for what is broken, and its Python reference has every name that documents import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

PACKAGE = "ros2_rfm_serving"
PACKAGE_XML = '<package format="3"><name>arms</name>{}</package>'
URL = '<url type="repository">https://forge.example/arms.git</url>'
PAGES = {
    "README.md": "# Arms\n\n[guide](docs/guide.md#the-arm), ![picture](docs/arm.svg)\n",
    "CONTRIBUTING.md": "# Contributing\n",
    "models/reach/MODEL_CARD.md": "# Reach\n\n## How it was made\n",
    "config/arm.yaml": "arm: 1\n",
    "arms/__init__.py": '"""Arms."""\n',
    "docs/README.md": "# Pages\n\n[start](../README.md)\n",
    "docs/arm.svg": '<svg xmlns="http://www.w3.org/2000/svg"/>',
    "docs/assets/iframe-worker.js": "",
    "docs/assets/site.css": "",
    "docs/guide.md": "# Guide\n\n## The arm\n\n[card](../models/reach/MODEL_CARD.md#how-it-was-made), "
    "[file](../config/arm.yaml), [folder](../config)\n",
}


def imported(source: str) -> Iterator[str]:
    """Return the full names that a program imports from the package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_what_documents_and_examples_import_is_in_the_python_reference(repository: Path) -> None:
    page = (repository / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    listed = re.findall(rf"^::: ({PACKAGE}\.[\w.]+)$", page, re.MULTILINE)
    programs = [file.read_text(encoding="utf-8") for file in (repository / "examples").rglob("*.py")]
    for file in [*(repository / "docs").rglob("*.md"), repository / "README.md"]:
        programs += re.findall(r"^```python[^\n]*\n(.*?)^```", file.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    used = {name for program in programs for name in imported(program)}
    assert used and len(listed) == len(set(listed))
    assert used <= set(listed), "docs/reference/python.md is the list of names that users import"


def built(repository: Path, folder: Path, changed: dict[str, str], xml: str = URL) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Build a small repository with this one's configuration and hooks. Returns the site's folder and the finished process."""
    pytest.importorskip("mkdocs", reason="of the extra `docs`")
    for name, text in {**PAGES, "package.xml": PACKAGE_XML.format(xml), **changed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    config = yaml.safe_load((repository / "mkdocs.yml").read_text(encoding="utf-8"))
    config |= {"hooks": [str(repository / "scripts" / "site_hooks.py")], "watch": []}
    config["nav"] = ["index.md", "README.md", "guide.md", "CONTRIBUTING.md", "models/reach/MODEL_CARD.md"]
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(folder / "mkdocs.yml")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    return folder / config["site_dir"], done


def test_links_lead_to_pages_and_files_to_the_repository(repository: Path, tmp_path: Path) -> None:
    site, done = built(repository, tmp_path, {})
    assert done.returncode == 0, done.stderr
    first, guide = (site / "index.html").read_text(encoding="utf-8"), (site / "guide.html").read_text(encoding="utf-8")
    assert 'href="guide.html#the-arm"' in first and 'src="arm.svg"' in first
    assert 'href="index.html">start<' in (site / "pages.html").read_text(encoding="utf-8")
    assert 'href="models/reach/MODEL_CARD.html#how-it-was-made"' in guide
    assert 'href="https://forge.example/arms/blob/HEAD/config/arm.yaml"' in guide
    assert 'href="https://forge.example/arms/tree/HEAD/config"' in guide


def test_lists_and_titles_of_code_are_as_on_a_forge(repository: Path, tmp_path: Path) -> None:
    guide = (
        "# Guide\n\n## The arm\n\n1. First:\n\n       rfm up\n\n   Wait.\n2. Then\n   - inner\n\n```yaml arm.yaml\n- a:\n  b\n```\n"
    )
    site, done = built(repository, tmp_path, {"docs/guide.md": guide})
    page = (site / "guide.html").read_text(encoding="utf-8")
    assert done.returncode == 0 and page.count("<ol>") == 1, done.stderr
    (numbered,) = re.findall(r"<ol>.*?</ol>", page, re.DOTALL)
    assert "<code>rfm up" in re.sub(r"<(?!/?code)[^>]*>", "", numbered) and "Wait." in numbered and "<ul>" in numbered
    assert '<span class="filename">arm.yaml</span>' in page
    assert "- a:\n  b\n" in re.sub(r"<[^>]*>", "", page), "code is as it was written"


def test_without_a_url_links_to_files_lead_to_the_checkout(repository: Path, tmp_path: Path) -> None:
    site, done = built(repository, tmp_path, {}, xml="")
    assert done.returncode == 0 and "package.xml names no repository" in done.stderr, done.stderr
    assert f'href="{(tmp_path / "config/arm.yaml").as_uri()}"' in (site / "guide.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"docs/guide.md": "# Guide\n\n## The arm\n\n[file](../config/leg.yaml)\n"}, "'config/leg.yaml', which does not exist"),
        ({"docs/guide.md": "# Guide\n\n## The arm\n\n[page](leg.md)\n"}, "'docs/leg.md', which does not exist"),
        ({"docs/guide.md": "# Guide\n"}, "does not contain an anchor '#the-arm'"),
        ({"docs/more.md": "# More\n"}, 'not included in the "nav"'),
        (
            {"docs/guide.md": "# Guide\n\n## The arm\n\n![](https://forge.example/a.png)\n"},
            "would load https://forge.example/a.png",
        ),
        ({"docs/guide.md": "# Guide\n\n## The arm\n\n::: arms.missing\n"}, "arms.missing could not be found"),
    ],
    ids=["file", "page", "anchor", "navigation", "other host", "Python name"],
)
def test_what_is_broken_fails_the_build(changed: dict[str, str], said: str, repository: Path, tmp_path: Path) -> None:
    _, done = built(repository, tmp_path, changed)
    assert done.returncode != 0 and said in done.stderr, done.stderr
