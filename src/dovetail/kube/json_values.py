# SPDX-License-Identifier: Apache-2.0
"""Values as JSON has them: mappings, lists, texts, numbers, truth values, null."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import TypeVar

import msgspec

T = TypeVar("T")
_KEPT = (bytes, datetime, date, time)
"""What YAML has beyond JSON."""


def copied_json(value: T) -> T:
    """A deep copy, without parts that are there twice, such as YAML's anchors make. `copy.deepcopy` takes ten times as
    long, as it looks for those and for types of all kinds."""
    copied: T = msgspec.to_builtins(value, builtin_types=_KEPT)
    return copied
