# SPDX-License-Identifier: Apache-2.0
"""What selectors mean: Kubernetes label requirements over one label set, exactly.

`NotIn` and `DoesNotExist` hold where the key is absent. `Gt` and `Lt` need one value; label and value must both parse
as base-10 64-bit integers, else the requirement does not hold.
Source: k8s.io/apimachinery/pkg/labels/selector.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail.core.label_terms import LabelSelector, Requirement

if TYPE_CHECKING:
    from dovetail.core.model import Taint, Toleration

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DIGITS = len(str(2**63))
_DECIMAL = re.compile(r"0|-?[1-9][0-9]*")


def as_int64(text: str) -> int | None:
    """Go's strconv.ParseInt(text, 10, 64): None where it would fail."""
    if _INTEGER.fullmatch(text) is None:
        return None
    # int() refuses thousands of digits with an error of its own; zeros before a number mean nothing.
    digits = text.lstrip("+-").lstrip("0") or "0"
    if len(digits) > _DIGITS:
        return None
    value = -int(digits) if text[0] == "-" else int(digits)
    return value if -(2**63) <= value < 2**63 else None


def holds(requirement: Requirement, value: str | None) -> bool:
    """Whether the requirement holds for a label value (None: the key is absent)."""
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            if value is None or len(requirement.values) != 1:
                return False
            left, right = as_int64(value), as_int64(requirement.values[0])
            if left is None or right is None:
                return False
            return left > right if requirement.operator == "Gt" else left < right


def matches(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether all requirements hold; None matches nothing."""
    return selector is not None and all(holds(r, labels.get(r.key)) for r in selector.requirements)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether the toleration covers the taint. Source: k8s.io/api/core/v1/toleration.go ToleratesTaint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "Equal":
            return toleration.value == taint.value
        case "Lt" | "Gt":
            if not (_DECIMAL.fullmatch(toleration.value) and _DECIMAL.fullmatch(taint.value)):
                return False
            bound, value = as_int64(toleration.value), as_int64(taint.value)
            if bound is None or value is None:
                return False
            return value < bound if toleration.operator == "Lt" else value > bound


def untolerated(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first NoSchedule or NoExecute taint that nothing tolerates."""
    for taint in taints:
        if taint.effect != "PreferNoSchedule" and not any(tolerates(t, taint) for t in tolerations):
            return taint
    return None
