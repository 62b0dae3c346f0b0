# SPDX-License-Identifier: Apache-2.0
"""The reference of `dovetail watch` has all keys of its screen."""

from __future__ import annotations

from dovetail.cli.watch.keys import KEYS
from tests.docs.pages import page


def test_keys() -> None:
    rows = page("docs/reference/cli.md").section("dovetail watch").rows("key")
    assert [(", ".join(row.code[0]), row.cells[1]) for row in rows] == [(one.shown, one.help) for one in KEYS]
