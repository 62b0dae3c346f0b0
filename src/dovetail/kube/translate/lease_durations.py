# SPDX-License-Identifier: Apache-2.0
"""Durations in the objects of leases: texts such as 1h30m or 0.25s, and ms."""

from __future__ import annotations

import re
from fractions import Fraction

from dovetail.core.model import Problem
from dovetail.kube.translate.problems import shown

_TIME = re.compile(r"(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,8}(?:\.[0-9]{1,3})?)s)?")


def time_ms(text: str) -> int:
    """The duration of a text such as 1h30m or 0.25s, in ms. Raises ValueError."""
    match = _TIME.fullmatch(text) if text else None
    if match is None:
        raise ValueError(text)
    hours, minutes, seconds = match.groups(default="0")
    return (int(hours) * 3600 + int(minutes) * 60) * 1000 + int(Fraction(seconds) * 1000)


def time_within(text: str, least: int, most: int, path: str, problems: list[Problem], *, zero: bool = False) -> int:
    """The duration in ms, within its bounds, with a Problem where it was not. `zero`: 0 is valid, too."""
    try:
        found = time_ms(text)
    except ValueError:
        found = -1
    if least <= found <= most or (zero and found == 0):
        return found
    near = text_of_ms(min(max(found, least), most))
    rule = f"must be a duration in h, m and s, from {text_of_ms(least)} to {text_of_ms(most)}; nearest valid: {near}"
    problems.append(Problem(path, shown(text), rule + (", or 0s" if zero else "")))
    return min(max(found, least), most)


def time_up_to(text: str | None, most: int, path: str, problems: list[Problem]) -> int:
    """The duration in ms, up to `most`; 0 where there is none."""
    return 0 if text is None else time_within(text, 0, most, path, problems)


def text_of_ms(duration_ms: int) -> str:
    """A duration as it is written: 1h30m, 0.25s."""
    seconds, ms = divmod(duration_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    decimals = f".{ms:03d}".rstrip("0") if ms else ""
    found = f"{hours}h" * (hours > 0) + f"{minutes}m" * (minutes > 0)
    return found + (f"{seconds}{decimals}s" if seconds or ms or not found else "")
