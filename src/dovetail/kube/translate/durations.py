# SPDX-License-Identifier: Apache-2.0
"""Durations such as 1h30m, in annotations and options."""

from __future__ import annotations

import re

_DURATION = re.compile("".join(f"(?:([0-9]{{1,9}}){unit})?" for unit in "dhms"))
_SECONDS = (86400, 3600, 60, 1)


def duration_ms(text: str) -> int:
    """The duration of a text such as 1h30m, in ms. Raises ValueError."""
    match = _DURATION.fullmatch(text) if text else None
    if match is None:
        raise ValueError(f"{text[:40]!r} is no duration")
    return 1000 * sum(int(amount) * unit for amount, unit in zip(match.groups(default="0"), _SECONDS, strict=True))


DURATION_RULE = "must be a duration in d, h, m and s, in that order, and more than zero"
