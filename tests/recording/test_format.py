# SPDX-License-Identifier: Apache-2.0
"""docs/reference/recording.md names every field of the format and of the answer, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import fields

from dovetail.recording.format import FORMAT, LINE, Header, RecordedLine
from dovetail.recording.replay import Difference, Replay
from tests.docs.pages import page

PAGE = page("docs/reference/recording.md")


@pytest.mark.parametrize(
    ("head", "record"), [("header", Header), ("call", RecordedLine), ("field", Replay), ("difference", Difference)]
)
def test_fields(head: str, record: Any) -> None:
    written = [span for row in PAGE.rows(head) for span in row.code[0]]
    assert sorted(written) == sorted(field.encode_name for field in fields(record))


def test_the_format_number() -> None:
    assert f"This is format {FORMAT}." in PAGE.text


def test_the_example_can_be_read() -> None:
    (example,) = [block.text for block in PAGE.blocks if block.language == "json"]
    line = LINE.decode(example.encode())
    assert line.step == json.loads(example)["step"]
    assert len(line.events) == 1
