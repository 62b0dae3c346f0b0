# SPDX-License-Identifier: Apache-2.0
"""What the linter finds in manifests of public repositories, read and judged one by one, as short copies with the
fields that rules read. The files are not kept, only which they are, how many of their pods have GPUs, and what was
found (without G44). `doubtful` are the rules whose finding the reader of the file would not sign. Errors are of G00
alone: merge conflicts and wrong indentation."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from dovetail.advice.lint.engine import UNREADABLE
from dovetail.advice.lint.rules import BY_ID

TABLE = Path(__file__).parent / "public-manifests.tsv"
_FOUND = re.compile(r"(G\d\d)( info| error)?(?: x(\d+))?")


def test_few_warnings_are_doubtful_and_no_error_is() -> None:
    rows = list(csv.DictReader(TABLE.read_text().splitlines(), delimiter="\t"))
    assert len({(row["repository"], row["path"], row["commit"]) for row in rows}) == len(rows) >= 150
    assert len({row["repository"] for row in rows}) >= 50
    warnings = doubtful = 0
    for row in rows:
        for part in filter(None, row["findings"].split(", ")):
            found = _FOUND.fullmatch(part)
            assert found and (found[1] in BY_ID or found[1] == UNREADABLE), row
            if not found[2]:
                warnings += int(found[3] or 1)
                doubtful += int(found[3] or 1) * (found[1] in row["doubtful"])
            assert found[2] != " error" or found[1] == UNREADABLE, row
    assert doubtful <= 0.03 * warnings
