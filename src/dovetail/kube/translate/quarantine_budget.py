# SPDX-License-Identifier: Apache-2.0
"""How many GPU nodes may be quarantined at a time, as text: `3`, or a part of all, `10%`.

The scheduler writes it as an annotation of its lease, for the commands that explain what it does.
"""

from __future__ import annotations

from msgspec.structs import replace

from dovetail.core.policy import Policy

QUARANTINE_BUDGET = "dovetail.dev/quarantine-budget"
"""The annotation of the lease."""


def with_budget(policy: Policy, text: str) -> Policy:
    """The policy with this budget. Raises ValueError if the text is none."""
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdecimal() and len(number) <= 6) or (number != text and int(number) > 100):
        raise ValueError(f"{text!r} is neither a number of nodes nor a part of all nodes such as 10%")
    of_all, nodes = (int(number) * 10, 0) if number != text else (0, int(number))
    return replace(policy, quarantine_milli=of_all, quarantine_nodes=nodes)


def budget_of(policy: Policy) -> str:
    """The budget of a policy as text."""
    if policy.quarantine_nodes or not policy.quarantine_milli:
        return str(policy.quarantine_nodes)
    return f"{policy.quarantine_milli // 10}%"
