# SPDX-License-Identifier: Apache-2.0
"""Documents written in many layouts, and what of them has to stay."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import yaml

from dovetail.advice.lint.field import Path

LAYOUTS = ["block", "indented", "flow", "mixed", "crlf", "json", "json lines"]


class Indented(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


class Flush(Indented):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        yaml.SafeDumper.increase_indent(self, flow, indentless)


def written(document: Any, layout: str, dice: random.Random) -> str:
    """The document in one of many layouts, with comments at the ends of lines and on lines of their own."""
    if layout.startswith("json"):
        return json.dumps(document, indent=None if layout == "json" else 2, ensure_ascii=False) + "\n"
    flow = {"flow": True, "mixed": None}.get(layout, False)
    dumper = Indented if layout == "indented" else Flush
    text = yaml.dump(document, Dumper=dumper, default_flow_style=flow, allow_unicode=True, width=2**20, sort_keys=False)
    lines: list[str] = []
    multiline = "\n\n" in text or any(isinstance(s, str) and "\n" in s for s in leaves(document))
    for line in text.splitlines():
        if not multiline and dice.random() < 0.2:
            lines.append(f"{' ' * (len(line) - len(line.lstrip()))}# about {len(lines)}")
        lines.append(f"{line}  # end {len(lines)}" if not multiline and dice.random() < 0.2 else line)
    glue = "\r\n" if layout == "crlf" and not multiline else "\n"
    return ("---" + glue if dice.random() < 0.5 else "") + glue.join(lines) + glue


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [leaf for each in inner for leaf in leaves(each)]
    return [value]


def paths(value: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    found = [(path, value)]
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        found += paths(inner, (*path, key))
    return found


def comments(text: str) -> set[str]:
    return set(re.findall(r"# (?:about|end) \d+", text))
