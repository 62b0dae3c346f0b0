# SPDX-License-Identifier: Apache-2.0
"""All rules, by id."""

from dovetail.advice.lint.rule import Rule
from dovetail.advice.lint.rules import amounts, nodes, placement, products

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (rule for module in (amounts, nodes, placement, products) for rule in module.RULES), key=lambda rule: rule.id
    )
)
BY_ID = {rule.id: rule for rule in RULES}
