# SPDX-License-Identifier: Apache-2.0
"""All rules, by id."""

from dovetail.advice.lint.rule import Rule
from dovetail.advice.lint.rules import amounts, devices, gangs, jobs

RULES: tuple[Rule, ...] = tuple(
    sorted((*amounts.RULES, *devices.RULES, *gangs.RULES, *jobs.RULES), key=lambda rule: rule.id)
)
BY_ID = {rule.id: rule for rule in RULES}
