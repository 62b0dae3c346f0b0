# SPDX-License-Identifier: Apache-2.0
"""A page at one time, as it is sent: JSON, packed once for all viewers, and CSV.

Rules: a cell of CSV that a spreadsheet would take for a formula begins with an apostrophe. A list in a cell is
separated by spaces, anything else that is no plain value is JSON.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable
from functools import cached_property
from io import StringIO

import msgspec
from msgspec import Struct

from dovetail.dashboard.page_types import AnyPage
from dovetail.views.csv_text import csv_text

PACKED_LEVEL = 5
"""Of gzip: a page is packed once for all its viewers."""


class SheetDocument(Struct, frozen=True, rename="camel"):
    """A page in JSON: what it shows, encoded, and the time that it is about."""

    as_of_ms: int
    page: msgspec.Raw
    error: str


class Sheet:
    """A page, or the message why there is none, with status 404 or 503. `version` grows with each change."""

    def __init__(self, version: int, as_of_ms: int, page: AnyPage | None, error: str = "", status: int = 200) -> None:
        self.version = version
        self.page = page
        self.status = status
        self.compared = msgspec.json.encode(page), error
        """What a viewer sees, without its time."""
        self.as_of_ms = as_of_ms

    @cached_property
    def json(self) -> bytes:
        page, error = self.compared
        return msgspec.json.encode(SheetDocument(self.as_of_ms, msgspec.Raw(page), error))

    @cached_property
    def packed(self) -> bytes:
        """The JSON, by gzip."""
        return gzip.compress(self.json, PACKED_LEVEL)

    @cached_property
    def csv(self) -> str:
        """The rows of the page."""
        rows = getattr(self.page, self.page.rows) if self.page is not None else ()
        return csv_of(msgspec.to_builtins(rows))


def csv_of(rows: Iterable[dict[str, object]]) -> str:
    """A line for each row, after one with the names of the columns; nothing without rows."""
    text, writer = StringIO(), None
    for row in rows:
        if writer is None:
            writer = csv.writer(text)
            writer.writerow(row)
        writer.writerow(map(_cell, row.values()))
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int, float, list, tuple)):
        return msgspec.json.encode(value).decode()
    if isinstance(value, (list, tuple)):
        if any(isinstance(one, (list, tuple, dict)) for one in value):
            return msgspec.json.encode(value).decode()
        value = " ".join(map(str, value))
    text = str(value)
    return csv_text(text) if isinstance(value, str) else text
