# SPDX-License-Identifier: Apache-2.0
"""Reports of invalid input: one Problem for an object, with the nearest valid value.

A record holds one Problem; it names the fields of the others, so that a user can correct all at once. The text is short
for any input.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from dovetail.core.model import Problem

V = TypeVar("V")

_MOST_NAMED = 8
_LONGEST_COMPARED, _MOST_COMPARED = 64, 64
_LONGEST_SHOWN = 256

NO_GROUP_CLAIMS = "claims of a PodGroup are not known here: let each pod have its own, by resourceClaims in its spec"


def first_of(problems: Sequence[Problem]) -> Problem | None:
    """The first problem, which also names the fields of the others."""
    if len(problems) < 2:
        return problems[0] if problems else None
    first = problems[0]
    fields = list(dict.fromkeys([p.field for p in problems[1:]]))
    others = ", ".join(fields[:_MOST_NAMED])
    if len(fields) > _MOST_NAMED:
        others += f" and {len(fields) - _MOST_NAMED} more"
    return Problem(first.field, first.value, f"{first.rule} (more problems: {others})")


def nearest(value: str, valid: Iterable[str], similarity: float = 0.0) -> str:
    """The most similar valid value; "" if there is none with a similarity of at least `similarity` (1: equal, 0:
    nothing in common)."""
    matcher = difflib.SequenceMatcher(b=value[:_LONGEST_COMPARED])
    bounds = []
    for one in islice(valid, _MOST_COMPARED):
        matcher.set_seq1(one)
        bounds.append((matcher.quick_ratio(), one))
    found = (similarity, "")
    # The similarity itself takes far longer than its upper bound, above all of names of few letters.
    for bound in sorted(bounds, reverse=True):
        if bound < found:
            break
        matcher.set_seq1(bound[1])
        found = max(found, (matcher.ratio(), bound[1]))
    return found[1]


def shown(value: str) -> str:
    """The value, cut to the length of a message."""
    return value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}..."


def one_of(allowed: Mapping[str, V], value: str, path: str, problems: list[Problem]) -> V | None:
    """The meaning of `value`; None, with a Problem, if it is not allowed."""
    found = allowed.get(value)
    if found is None:
        names = [name for name in allowed if name]
        near = nearest(value, names) if len(problems) < _MOST_NAMED else names[0]
        rule = f"must be one of {', '.join(names)}; nearest valid value: {near}"
        problems.append(Problem(path, shown(value), rule))
    return found
