"""Hooks of MkDocs (mkdocs.yml): pages and links of the repository on the documentation site.

Pages are written to be read in the repository. Four things differ on the site:

- Some pages lie outside docs/ (`PAGES_OUTSIDE`). They become pages of the site from where they lie.
- Links to other files outside docs/ lead to the repository that package.xml names in `<url type="repository">`, or, as long as it
  names none, to the checkout from which the site is built.
- On a forge the content of a list item is indented by the width of its marker; Python-Markdown wants four columns, and an empty
  line between items of several paragraphs.
- A fence such as "```python my_policy.py" names a file, which the site shows as the title of the block.

A link to a file that does not exist is a warning, as is anything that a page loads from another host. `mkdocs build --strict` fails
with either.
"""

from __future__ import annotations

import logging
import posixpath
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from mkdocs.structure.files import File
from pymdownx.slugs import slugify

if TYPE_CHECKING:
    from markdown import Markdown
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

PAGES_OUTSIDE = ("README.md", "CONTRIBUTING.md", "models/*/MODEL_CARD.md", "examples/*/models/*/MODEL_CARD.md")
"""Pages outside docs/, as patterns of paths in the repository. They keep their path, except README.md, which is the first page."""
LIST_OF_PAGES = "README.md"
"""Page of docs/ that would be the first one; it gets a name of its own."""
FENCE = re.compile(r"^(?P<fence> *`{3,}\w+) (?P<file>[\w./-]+)$", re.MULTILINE)
ITEM = re.compile(r"(?:\d+\.|[-*]) +(?=\S)")
"""Marker of a list's item at the beginning of a line."""
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(?P<url>(?:https?:)?//[^\"' >]+)")
"""Something that a browser loads from another host."""

log = logging.getLogger("mkdocs.hooks.site")


def repository_url(root: Path) -> str:
    """Return the repository's URL from package.xml, without a slash at the end; empty if it names none."""
    urls = [url.text or "" for url in ET.parse(root / "package.xml").iter("url") if url.get("type") == "repository"]
    return urls[0].strip().removesuffix(".git").rstrip("/") if urls else ""


class RepositoryLinks(Extension):
    """Markdown extension that turns links between files of the repository into links of the site.

    root: top folder of the repository. pages: path in the repository -> path of the site's source file.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.url = repository_url(root)
        self.pages: dict[str, str] = {}
        self.source = ""
        """Path in the site's sources of the page that is rendered."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Run after inline patterns (20) have made links, and before MkDocs (0) resolves them between its pages."""
        md.treeprocessors.register(_Rewriting(md, self), "repository_links", 5)

    def rewritten(self, link: str) -> str:
        """Return a link of the current page as the site needs it: a relative one between pages, another one as it is, or a URL."""
        parts = urlsplit(link)
        if parts.scheme or parts.netloc or not parts.path:
            return link
        here = next(path for path, source in self.pages.items() if source == self.source)
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), unquote(parts.path)))
        if target in self.pages:
            relative = posixpath.relpath(self.pages[target], posixpath.dirname(self.source) or ".")
            return parts._replace(path=relative).geturl()
        return self._outside(target, link)

    def _outside(self, target: str, link: str) -> str:
        path = self.root / target
        if target.startswith("..") or not path.exists():
            log.warning(f"{self.source}: the link '{link}' leads to '{target}', which does not exist in the repository")
            return link
        if not self.url:
            return path.as_uri()
        return f"{self.url}/{'tree' if path.is_dir() else 'blob'}/HEAD/{target}"


class _Rewriting(Treeprocessor):
    def __init__(self, md: Markdown, links: RepositoryLinks) -> None:
        super().__init__(md)
        self.links = links

    def run(self, root: Any) -> None:
        for element in root.iter():
            for attribute in ("href", "src"):
                if link := element.get(attribute):
                    element.set(attribute, self.links.rewritten(link))


def indented(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a page with list items as Python-Markdown wants them."""
    missing, is_code, is_loose, previous = 0, False, False, ""
    for line in lines:
        item = ITEM.match(line)
        if line.startswith("```"):
            is_code, missing = not is_code, 0
        elif item and not is_code:
            missing = max(0, 4 - len(item[0]))
            if is_loose and previous:
                yield ""
        elif line and not line.startswith(" "):
            missing, is_loose = 0, False
        elif line and not previous:
            is_loose = True
        yield " " * missing + line if line.startswith(" ") else line
        previous = line


def on_config(config: MkDocsConfig) -> None:
    root = Path(config.config_file_path).parent
    links = RepositoryLinks(root)
    config.markdown_extensions.append(links)  # type: ignore[arg-type]  # instances are allowed by Markdown
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")  # headings are named as forges name them
    config.extra["repository_links"] = links
    if not links.url:
        log.info("package.xml names no repository: links to files outside docs/ lead to this checkout")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages outside docs/, and tell the links which pages there are."""
    links: RepositoryLinks = config.extra["repository_links"]
    docs = PurePosixPath(Path(config.docs_dir).relative_to(links.root).as_posix())
    files.src_uris[LIST_OF_PAGES].dest_uri = "pages.html"
    links.pages = {str(docs / file.src_uri): file.src_uri for file in files if file.src_dir == config.docs_dir}
    for path in (path for pattern in PAGES_OUTSIDE for path in sorted(links.root.glob(pattern))):
        name = path.relative_to(links.root).as_posix()
        source = "index.md" if name == "README.md" else name
        files.append(File.generated(config, source, abs_src_path=str(path)))
        links.pages[name] = source


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    config.extra["repository_links"].source = page.file.src_uri
    return FENCE.sub(r'\g<fence> title="\g<file>"', "\n".join(indented(markdown.split("\n"))))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    for found in LOADED.finditer(output):
        log.warning(f"{page.file.src_uri}: the browser would load {found['url']} from another host")
    return output
