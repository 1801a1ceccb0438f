"""Pages lead where they say, and none is left out of the list of pages."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

LINK = re.compile(r"\]\((?!https?:|mailto:)(?P<to>[^)\s#]*)(?:#(?P<anchor>[^)\s]+))?\)")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages(repository: Path) -> Iterator[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=repository, capture_output=True, text=True, check=True)
    yield from (repository / name for name in listed.stdout.splitlines() if (repository / name).exists())


def anchors(page: Path) -> set[str]:
    """Of every heading, as forges make them: small letters, no punctuation, hyphens for spaces, numbered where two are alike."""
    found: dict[str, int] = {}
    for title in HEADING.findall(FENCED.sub("", page.read_text())):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {name + (f"-{i}" if i else "") for name, most in found.items() for i in range(most + 1)}


def test_every_link_leads_to_a_file_and_to_a_heading_that_are_there(repository: Path) -> None:
    known: dict[Path, set[str]] = {}
    broken = []
    links = 0
    for page in pages(repository):
        for link in LINK.finditer(FENCED.sub("", page.read_text())):
            links += 1
            to = (page.parent / link["to"]).resolve() if link["to"] else page.resolve()
            if not to.exists():
                broken.append(f"{page.relative_to(repository)}: {link[0]}: no such file")
            elif link["anchor"] and to.suffix == ".md" and link["anchor"] not in known.setdefault(to, anchors(to)):
                broken.append(f"{page.relative_to(repository)}: {link[0]}: no such heading")
    assert links > 100
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    "title, anchor", [("## `make gpu`, on a CPU", "make-gpu-on-a-cpu"), ("### [A page](a.md) of B's", "a-page-of-bs")]
)
def test_headings_are_named_as_forges_name_them(title: str, anchor: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{title}\n\n```\n# no heading\n```\n\n{title}\n")
    assert anchors(page) == {"title", anchor, f"{anchor}-1"}


def test_the_list_of_pages_has_every_page(repository: Path) -> None:
    docs = repository / "docs"
    listed = {(docs / link["to"]).resolve() for link in LINK.finditer((docs / "README.md").read_text()) if link["to"]}
    left_out = [
        str(page.relative_to(docs))
        for page in pages(repository)
        if docs in page.parents and page not in listed and page != docs / "README.md"
    ]
    assert not left_out
