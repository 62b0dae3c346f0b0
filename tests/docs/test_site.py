# SPDX-License-Identifier: Apache-2.0
"""The documentation builds as a site: links and anchors hold, the menu has every page, nothing is foreign."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.pages import every_page
from tests.paths import ROOT

FETCHING = {"script": "src", "img": "src", "source": "src", "iframe": "src", "link": "href"}
"""Elements for which a browser fetches something as it shows a page, and the attribute with its address."""
TAG = re.compile(rf"""<(?:{"|".join(FETCHING)})\b(?:"[^"]*"|'[^']*'|[^>"'])*>""", re.IGNORECASE)
"""The start of one of them, in scripts and comments too."""


class Fetched(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.urls: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.urls |= {value for name, value in attrs if name == FETCHING.get(tag) and value}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # mkdocs.yml makes a dead link, a dead anchor, and a page that is not in the menu a warning.
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(argv, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_there_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    for source in (page.path for page in every_page() if page.path.is_relative_to(ROOT / "docs")):
        html = site / source.relative_to(ROOT / "docs").with_suffix(".html")
        urls = set[str]()
        # The other elements, a hundred times as many, are not parsed.
        for tag in TAG.findall(html.read_text()):
            fetched = Fetched()
            fetched.feed(tag)
            urls |= fetched.urls
        assert len(urls) > 2
        for url in urls:
            assert not re.match(r"(\w+:)?//", url), (html.name, url)
            assert (html.parent / url.partition("?")[0].partition("#")[0]).exists(), (html.name, url)


@pytest.mark.slow
def test_styles_fetch_nothing_from_elsewhere(site: Path) -> None:
    styles = sorted(site.rglob("*.css"))
    assert styles
    for style in styles:
        assert not re.findall(r"""(?:url\(|@import )\s*["']?(?:\w+:)?//""", style.read_text()), style.name


@pytest.mark.slow
def test_the_search_finds_pages(site: Path) -> None:
    assert "GangDoesNotFit" in (site / "search/search_index.json").read_text()
