# SPDX-License-Identifier: Apache-2.0
"""A window of the page Jobs: the first jobs that match a search, in a sort order.

Rules
- The name of a window is a query, `first=200&sort=-gpus&q=team-a%20run`, so that its page is a topic as others are. `q`
  searches what rows show, `name` the names of jobs alone.
- A window has at most MOST_FIRST rows, and its search at most MOST_LETTERS letters: its cost is bounded. The files
  of the page have all rows.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from dovetail.views.job_types import SORTS, JobFilter

MOST_FIRST = 1_000
MOST_LETTERS = 100
LONGEST_WINDOW = 12 * MOST_LETTERS + 64
"""Of a letter there are up to twelve in an address."""
_FIELDS = ("first", "sort", "q", "name")


def window_of(text: str) -> JobFilter | None:
    """The window of this name; None if there is none."""
    if len(text) > LONGEST_WINDOW:
        return None
    try:
        pairs = parse_qsl(text, strict_parsing=True, max_num_fields=len(_FIELDS), errors="strict")
    except ValueError:
        return None
    asked = dict(pairs)
    first, by, words, names = (asked.get(name, "") for name in _FIELDS)
    down, sort = by.startswith("-"), by.removeprefix("-")
    known = len(asked) == len(pairs) and asked.keys() <= set(_FIELDS) and (not by or sort in SORTS)
    if not (known and first.isascii() and first.isdecimal() and len(first) < 9 and len(words + names) <= MOST_LETTERS):
        return None
    if not 0 < int(first) <= MOST_FIRST:
        return None
    return JobFilter(
        first=int(first), sort=sort, descending=down, words=tuple(words.split()), name_words=tuple(names.split())
    )
