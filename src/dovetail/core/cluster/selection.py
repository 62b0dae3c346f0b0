# SPDX-License-Identifier: Apache-2.0
"""Which nodes a selector picks, as a mask over slots."""

from __future__ import annotations

import numpy as np

from dovetail.core.cluster.columns import Index, Mask
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.model import NodeTerm, Request, Requirement


def matches_selector(nodes: Nodes, selector: tuple[tuple[str, str], ...], index: Index) -> Mask:
    """Where every key has exactly this value."""
    mask = np.ones(len(nodes.usable[index]), dtype=np.bool_)
    for key, value in selector:
        mask &= nodes.columns[key].mask(Requirement(key, "In", (value,)), index)
    return mask


def matches_term(nodes: Nodes, term: NodeTerm, index: Index) -> Mask:
    """Where all expressions and fields of the term hold; nowhere for an empty term."""
    size = len(nodes.usable[index])
    if not term.expressions and not term.fields:
        return np.zeros(size, dtype=np.bool_)
    mask = np.ones(size, dtype=np.bool_)
    for requirement in term.expressions:
        mask &= nodes.columns[requirement.key].mask(requirement, index)
    for requirement in term.fields:
        mask &= _named(nodes, requirement, index)
    return mask


def matches_terms(nodes: Nodes, terms: tuple[NodeTerm, ...] | None, index: Index) -> Mask:
    """Where any term holds; everywhere for None, nowhere for no terms."""
    size = len(nodes.usable[index])
    if terms is None:
        return np.ones(size, dtype=np.bool_)
    mask = np.zeros(size, dtype=np.bool_)
    for term in terms:
        mask |= matches_term(nodes, term, index)
    return mask


def matches_affinity(nodes: Nodes, request: Request, index: Index) -> Mask:
    """nodeSelector and required node affinity together."""
    return matches_selector(nodes, request.node_selector, index) & matches_terms(nodes, request.node_terms, index)


def _named(nodes: Nodes, requirement: Requirement, index: Index) -> Mask:
    named = np.zeros(nodes.size, dtype=np.bool_)
    for name in requirement.values:
        slot = nodes.slots.get(name)
        if slot is not None:
            named[slot] = True
    return named[index] if requirement.operator == "In" else ~named[index]
