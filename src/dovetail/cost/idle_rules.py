# SPDX-License-Identifier: Apache-2.0
"""Which groups bear the cost of GPUs that nobody held: rows of their own, or the groups of holders by a rule.

Rules
- `separate`: rows of their own. `weighted`: in proportion to what is allocated to each group. `even`: the same for each
  group to which anything is allocated; a row of several groups bears as much as these would.
- Parts are exact, by largest remainder: the sum over all rows stays the same.
- Where nothing is allocated there is nobody to bear it: it stays in rows of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from dovetail.cost.group_sums import Sums
from dovetail.cost.rounding import parts_of

IdleRule = Literal["separate", "weighted", "even"]
IDLE_RULES: tuple[IdleRule, ...] = get_args(IdleRule)


def shared(rows: Sequence[Sums], rule: IdleRule) -> list[Sums]:
    """The rows after the rule: what nobody held is in `shared` of the groups. Changes the rows."""
    groups = [row for row in rows if row.of_groups]
    bearing = [row.allocated if rule == "weighted" else row.bearers * (row.allocated_time > 0) for row in groups]
    if rule == "separate" or not any(bearing):
        return list(rows)
    whole = sum(row.nobodys for row in rows if not row.of_groups)
    for row, part in zip(groups, parts_of(whole, bearing), strict=True):
        row.shared += part
    return groups
