# SPDX-License-Identifier: Apache-2.0
"""All rules, by id."""

from dovetail.advice.lint.rule import Rule
from dovetail.advice.lint.rules import amounts, nodes, placement, products, taints, volumes

_MODULES = (amounts, nodes, placement, products, taints, volumes)
RULES: tuple[Rule, ...] = tuple(sorted((rule for one in _MODULES for rule in one.RULES), key=lambda rule: rule.id))
BY_ID = {rule.id: rule for rule in RULES}
