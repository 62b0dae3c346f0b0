# SPDX-License-Identifier: Apache-2.0
"""The cases of a rule, as its tests share them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dovetail.advice.lint.rule import Rule

CASES = Path(__file__).parent / "cases"
FOUND, NEAR_MISS = "found", "near miss"


def cases(rule: Rule) -> Iterator[tuple[str, str]]:
    """(found or near miss, text): the rule's own examples, and those in its file, where a line `#: found` or
    `#: near miss` begins each."""
    yield FOUND, rule.bad
    yield NEAR_MISS, rule.good
    for part in (CASES / f"{rule.id}.yaml").read_text().split("#: ")[1:]:
        what, _, text = part.partition("\n")
        yield what.partition(":")[0].strip(), text
