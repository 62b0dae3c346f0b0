# SPDX-License-Identifier: Apache-2.0
"""Label selectors and the expressions that they are made of."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]


class Requirement(Struct, frozen=True):
    """One expression over labels. `Gt` and `Lt` hold one value and compare as 64-bit integers, strictly."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class LabelSelector(Struct, frozen=True):
    """All requirements must hold; no requirement matches everything. `matchLabels` arrive as `In` of one value."""

    requirements: tuple[Requirement, ...] = ()
