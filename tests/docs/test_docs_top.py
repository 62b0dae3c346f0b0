# SPDX-License-Identifier: Apache-2.0
"""The page about `dovetail top` has each class, in the order in which they are tried."""

from __future__ import annotations

from dovetail.monitoring import bottleneck
from tests.docs.pages import page


def test_every_class_is_explained_in_order() -> None:
    rows = page("docs/how-to/see-gpu-use.md").section("What the classes mean").rows("class")
    named = [name for row in rows for name in row.code[0]]
    compared = [bottleneck.HUNG, bottleneck.STRAGGLER, bottleneck.COMMUNICATION]
    expected = [one.name for one in (*compared, *(found for found, _ in bottleneck.CLASSES))]
    assert named == [*expected, "busy", bottleneck.UNKNOWN.name]
