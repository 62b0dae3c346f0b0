# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs.yml: adds the pages at the root of the repository to the site and adapts their links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def on_files(files: Files, config: Any) -> Files:
    for name in PAGES:
        text = (ROOT / name).read_text().replace("](docs/", "](")
        for other in PAGES:
            text = text.replace(f"]({other}", f"]({other.lower()}")
        files.append(File.generated(config, name.lower(), content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Adapt links of the form `../`, by which the pages in docs/ link to those at the root on GitHub."""
    return re.sub(
        rf"\]\(\.\./({'|'.join(PAGES)})".replace(".md", r"\.md"), lambda link: f"]({link[1].lower()}", markdown
    )
