# SPDX-License-Identifier: Apache-2.0
"""Markup as rich reads it, `[bold]a name[/bold]`, without rich: most output is text in a pipe."""

from __future__ import annotations

import re

_TAG = re.compile(r"(\\*)(\[[a-z#/@][^[]*?])")


def escape(text: str) -> str:
    """The text so that rich reads no markup in it: as rich.markup.escape."""
    if "[" not in text and not text.endswith("\\"):
        return text
    shown = _TAG.sub(r"\1\1\\\2", text)
    return f"{shown}\\" if shown.endswith("\\") and not shown.endswith("\\\\") else shown


def plain(markup: str) -> str:
    """What rich shows of markup where there are no colours: no tags, and one backslash less before a bracket."""
    if "[" not in markup:
        return markup
    shown, at = "", 0
    for found in _TAG.finditer(markup):
        backslashes, escaped = divmod(len(found[1]), 2)
        shown += markup[at : found.start()].replace("\\[", "[") + "\\" * backslashes + found[2] * escaped
        at = found.end()
    return shown + markup[at:].replace("\\[", "[")
