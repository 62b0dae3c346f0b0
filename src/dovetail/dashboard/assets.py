# SPDX-License-Identifier: Apache-2.0
"""The files of the pages: read once, and packed once. What is not among them is not found."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

from msgspec import Struct

FOLDER = Path(__file__).parent / "assets"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Asset(Struct, frozen=True):
    """A file, and the same by gzip. `tag` is its ETag."""

    content_type: str
    content: bytes
    packed: bytes
    tag: str


def read_assets(folder: Path = FOLDER) -> dict[str, Asset]:
    """By path below the folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            packed = gzip.compress(content, mtime=0)
            found[path.relative_to(folder).as_posix()] = Asset(_TYPES[path.suffix], content, packed, tag)
    return found
