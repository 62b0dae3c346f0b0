# SPDX-License-Identifier: Apache-2.0
"""All rules of the linter, by id."""

from itertools import chain

from dovetail.advice.lint.rule import Rule
from dovetail.advice.lint.rules import (
    amounts,
    claims,
    devices,
    drivers,
    gangs,
    images,
    instance_types,
    jobs,
    kubelet,
    lifecycle,
    memory,
    models,
    names,
    network,
    nodes,
    placement,
    products,
    ranks,
    refusals,
    rendezvous,
    requests,
    restarts,
    rollouts,
    security,
    starts,
    taints,
    variables,
    volumes,
)

_MODULES = (
    amounts,
    claims,
    devices,
    drivers,
    gangs,
    images,
    instance_types,
    jobs,
    kubelet,
    lifecycle,
    memory,
    models,
    names,
    network,
    nodes,
    placement,
    products,
    ranks,
    refusals,
    rendezvous,
    requests,
    restarts,
    rollouts,
    security,
    starts,
    taints,
    variables,
    volumes,
)
RULES: tuple[Rule, ...] = tuple(sorted(chain.from_iterable(one.RULES for one in _MODULES), key=lambda rule: rule.id))
BY_ID = {rule.id: rule for rule in RULES}
