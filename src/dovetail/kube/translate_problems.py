# SPDX-License-Identifier: Apache-2.0
"""How bad input is told: one Problem for an object, with the nearest valid value.

An object has room for one Problem; the others are named in it, so that nobody mends them one by one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from dovetail.core.model import Problem

V = TypeVar("V")

NO_GROUP_CLAIMS = "claims of a PodGroup are not known here: let each pod have its own, by resourceClaims in its spec"


def first_of(problems: Sequence[Problem]) -> Problem | None:
    """The first problem, which also names the fields of the others."""
    if len(problems) < 2:
        return problems[0] if problems else None
    first = problems[0]
    others = ", ".join(dict.fromkeys(p.field for p in problems[1:]))
    return Problem(first.field, first.value, f"{first.rule} (more problems: {others})")


def nearest(value: str, valid: Iterable[str]) -> str:
    """The valid value that looks most like this one; "" where there is none."""
    return next(iter(difflib.get_close_matches(value, list(valid), n=1, cutoff=0)), "")


def one_of(allowed: Mapping[str, V], value: str, path: str, problems: list[Problem]) -> V | None:
    """What `value` stands for; None, with a Problem, where it is not in the set."""
    found = allowed.get(value)
    if found is None:
        names = [name for name in allowed if name]
        rule = f"must be one of {', '.join(names)}; nearest valid value: {nearest(value, names)}"
        problems.append(Problem(path, value, rule))
    return found
