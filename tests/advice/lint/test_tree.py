# SPDX-License-Identifier: Apache-2.0
"""Places of fields: the same whether a text is read line by line or by PyYAML."""

from __future__ import annotations

import pytest

from dovetail.advice.lint.tree import FieldPlace, place
from dovetail.kube.yaml_lines import UNREAD, read_lines

TEXT = """\
# A workflow.
kind: Workflow
metadata: {name: train, labels: {team: vision}}
spec:
  templates:
  - name: make
    resource:
      manifest: |
        kind: Pod
        metadata:
          name: made
  -
    name: other
  - [a, {b: c}]
  -
"""
PLACES = {
    (): FieldPlace(1, 0),
    ("kind",): FieldPlace(1, 0),
    ("kind", "deeper"): FieldPlace(1, 0),
    ("metadata", "labels", "team"): FieldPlace(2, 33),
    ("metadata", "labels", "absent"): FieldPlace(2, 24),
    ("metadata", 0): FieldPlace(2, 0),
    ("spec", "templates", 0): FieldPlace(5, 4),
    ("spec", "templates", "0"): FieldPlace(4, 2),
    ("spec", "templates", 0, "resource", "manifest"): FieldPlace(7, 6),
    ("spec", "templates", 0, "resource", "manifest", "metadata", "name"): FieldPlace(
        7, 6, ("metadata", "name"), "kind: Pod\nmetadata:\n  name: made\n"
    ),
    ("spec", "templates", 1, "name"): FieldPlace(12, 4),
    ("spec", "templates", 2, 1, "b"): FieldPlace(13, 9),
    ("spec", "templates", 3): FieldPlace(14, 3),
    ("spec", "templates", 4): FieldPlace(4, 2),
}


@pytest.mark.parametrize("path", PLACES, ids=str)
def test_the_place_of_a_field_is_that_of_its_key_or_item(path: tuple[str | int, ...]) -> None:
    # The reader of lines leaves texts with tabs to PyYAML.
    left = f"{TEXT}#\t\n"
    assert read_lines(TEXT) is not UNREAD
    assert read_lines(left) is UNREAD
    assert [place(text, path) for text in (TEXT, left)] == [PLACES[path]] * 2


def test_an_empty_text_has_no_place() -> None:
    assert place("# nothing\n", ("a",)) is None
