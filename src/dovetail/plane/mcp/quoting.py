# SPDX-License-Identifier: Apache-2.0
"""Texts that others wrote, as data: names, reasons, messages, labels of nodes.

Rules
- Control characters, format characters (directions of writing, zero width, tags), surrogates and private characters are
  removed; white space becomes one space. The rest is cut at a length.
- In a sentence such a text is a JSON string in double quotes. So it cannot end its quotes, begin a line, or look like a
  sentence of the server.
Source: Unicode general categories. Tag characters (U+E0000 to U+E007F) are not seen, and models read them.
"""

from __future__ import annotations

import json
import unicodedata

MOST_CHARACTERS = 200
_REMOVED = {"Cc", "Cf", "Cs", "Co", "Cn"}
_CUT = "..."


def clean(text: str, most: int = MOST_CHARACTERS) -> str:
    """The text on one line, without characters that are not seen, with `most` characters at most."""
    # What is cut away is not examined: a text may be very long.
    words = "".join([_shown(character) for character in text[: 4 * most]]).split()
    line = " ".join(words)
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - len(_CUT)]}{_CUT}"


def quoted(text: str, most: int = MOST_CHARACTERS) -> str:
    """The cleaned text in double quotes."""
    return json.dumps(clean(text, most), ensure_ascii=False)


def _shown(character: str) -> str:
    if character.isspace():
        return " "
    return "" if unicodedata.category(character) in _REMOVED else character
