# SPDX-License-Identifier: Apache-2.0
"""Generator of the terminal pictures in the README and in docs/: real output of commands as SVG.

python -m tools.pictures

`PICTURES` lists them. Each command runs with the colours of a terminal of `WIDTH` columns, and a part of its output is
drawn. The pictures need no web fonts.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/pictures"
WIDTH = 100
_FETCHED = re.compile(r"\s*(?:<!--.*?-->|@font-face \{.*?\})", re.DOTALL)


class Picture(Struct, frozen=True):
    """A part of the output of `command`: from the line that starts with `first` up to, but excluding, the line that
    starts with `end`. Empty values mean the start and the end of the output. `title` is the command line shown."""

    name: str
    title: str
    command: tuple[str, ...]
    first: str = ""
    end: str = ""

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.svg"


_TWO_TEAMS = ("-f", "docs/examples/two-teams.yaml", "--at", "2026-11-22T12:00:00Z")
PICTURES = (
    Picture("demo", "make demo", ("demo",)),
    Picture("queue", "dovetail queue", ("queue", *_TWO_TEAMS)),
)


def printed(picture: Picture) -> Text:
    """Run the command and return its output. Raises CalledProcessError if it fails."""
    colours = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": "50"}
    dovetail = Path(sys.executable).with_name("dovetail")
    run = subprocess.run(
        [dovetail, *picture.command], cwd=ROOT, env=os.environ | colours, capture_output=True, text=True, check=True
    )
    lines = [Text.from_ansi(line) for line in run.stdout.splitlines()]
    starts = (n for n, line in enumerate(lines) if line.plain.startswith(picture.first))
    ends = (n for n, line in enumerate(lines) if picture.end and line.plain.startswith(picture.end))
    shown = lines[next(starts) : next(ends, None)]
    while not shown[-1].plain.strip():
        shown.pop()
    return Text("\n").join(shown)


def svg(picture: Picture) -> str:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(printed(picture))
    drawn = console.export_svg(title=picture.title, unique_id=picture.name)
    return "\n".join(line.rstrip() for line in _FETCHED.sub("", drawn).splitlines()) + "\n"


def text(drawn: str) -> str:
    """The text in a picture below its title, line by line."""
    rows: defaultdict[float, list[str]] = defaultdict(list)
    for found in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text"):
        if "clip-path" in found.attrib:
            rows[float(found.attrib["y"])].append((found.text or "").replace("\N{NO-BREAK SPACE}", " "))
    return "\n".join(" ".join(rows[y]) for y in sorted(rows))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for one in PICTURES:
        one.path.write_text(svg(one))
        print(one.path.relative_to(ROOT))
