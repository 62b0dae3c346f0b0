# SPDX-License-Identifier: Apache-2.0
"""Values as JSON has them: mappings, lists, texts, numbers, truth values, null."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def copied_json(value: T) -> T:
    """A deep copy, without parts that are there twice, such as YAML's anchors make. `copy.deepcopy` takes ten times as
    long, as it looks for those and for types of all kinds."""
    if isinstance(value, dict):
        return {key: copied_json(one) for key, one in value.items()}  # type: ignore[return-value]
    return [copied_json(one) for one in value] if isinstance(value, list) else value  # type: ignore[return-value]
