# SPDX-License-Identifier: Apache-2.0
"""Texts of others are data: on one line, without characters that are not seen, and inside quotes."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.plane.mcp.quoting import MOST_CHARACTERS, clean, quoted


@given(st.text(max_size=400) | st.text(alphabet='\x00\n\u202e\u200b\ufeff\U000e0041 a"\\', max_size=400))
def test_every_text_is_one_quoted_line_of_visible_characters(text: str) -> None:
    line = quoted(text)
    assert json.loads(line) == clean(text)
    assert len(clean(text)) <= MOST_CHARACTERS
    assert "\n" not in line and line[0] == line[-1] == '"'
    # No quote inside ends it.
    assert line[1:-1].replace("\\\\", "").replace('\\"', "").count('"') == 0
    assert all(unicodedata.category(one) not in ("Cc", "Cf", "Cs", "Co") for one in line)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\r\n\tb  c", "a b c"),
        ("\u202eevil\u2066", "evil"),
        ("hid\u200bden", "hidden"),
        ("x\U000e0049\U000e0047y", "xy"),
        ("line\u2028next\x85more", "line next more"),
        ("\x1b[31mred", "[31mred"),
        ("Ünïcode 日本", "Ünïcode 日本"),
        ("a" * 201, "a" * 197 + "..."),
        ("a" * 200, "a" * 200),
        (" " * 2000 + "hidden behind", "..."),
    ],
)
def test_what_is_removed_and_cut(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_a_long_text_costs_no_more_than_a_short_one() -> None:
    assert clean("\u200b" * 10_000_000) == "..."
