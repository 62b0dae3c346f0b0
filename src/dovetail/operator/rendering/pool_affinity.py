# SPDX-License-Identifier: Apache-2.0
"""The node affinity of a pool's DaemonSets: exactly the nodes that `pools.pool_of` finds in it.

A pool has the GPU nodes that its selector matches and no selector of an earlier pool does. Terms of an affinity are
ORed, and what is in one is ANDed; so "not this selector" is a term for each of its requirements, negated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.core.labels import holds
from dovetail.core.model import Requirement
from dovetail.kube.objects.stack import NodePool
from dovetail.operator.pools import GPU_NODES, selector_of

MOST_TERMS = 96
"""More than this no affinity has: pools by several labels each, none of which excludes another, multiply."""
_NEGATED = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}

Term = tuple[Requirement, ...]
Document = dict[str, object]


class TooManyTerms(Exception):
    """A pool whose nodes no affinity of `MOST_TERMS` terms describes."""


def node_terms(pools: Sequence[NodePool], pool: NodePool, more: Sequence[Requirement] = ()) -> list[Term]:
    """The terms for the nodes of `pool`, one of `pools` in force, that fulfil `more`. Raises TooManyTerms."""
    own = (*selector_of(pool).requirements, *more)
    terms = [_simplified((*gpu.requirements, *own)) for gpu in GPU_NODES]
    for earlier in pools[: pools.index(pool)]:
        excluded = selector_of(earlier).requirements
        if any(_disjoint(mine, other) for mine in own for other in excluded):
            continue
        terms = [_simplified((*term, _negated(one))) for term in terms for one in excluded]
        terms = list(dict.fromkeys(term for term in terms if not _impossible(term)))
        if len(terms) > MOST_TERMS:
            raise TooManyTerms(earlier.name)
    return terms


def gpu_node_terms() -> list[Term]:
    """The terms for all GPU nodes."""
    return [gpu.requirements for gpu in GPU_NODES]


def required(terms: Iterable[Term]) -> Document:
    """The nodeAffinity that requires one of the terms."""
    listed = [{"matchExpressions": [_expression(one) for one in term]} for term in terms]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": listed}}


def _expression(requirement: Requirement) -> Document:
    values = {"values": list(requirement.values)} if requirement.operator in ("In", "NotIn") else {}
    return {"key": requirement.key, "operator": requirement.operator, **values}


def _negated(requirement: Requirement) -> Requirement:
    return Requirement(requirement.key, _NEGATED[requirement.operator], requirement.values)  # type: ignore[arg-type]


def _disjoint(one: Requirement, other: Requirement) -> bool:
    """Whether no label value fulfils both, as far as their own values show it."""
    if one.key != other.key:
        return False
    values: tuple[str | None, ...] = (*one.values, *other.values)
    if "In" not in (one.operator, other.operator):
        return {one.operator, other.operator} == {"Exists", "DoesNotExist"}
    return not any(holds(one, value) and holds(other, value) for value in values)


def _impossible(term: Term) -> bool:
    return any(_disjoint(one, other) for i, one in enumerate(term) for other in term[:i])


def _simplified(term: Iterable[Requirement]) -> Term:
    """Without what is there twice; values that a key must not have are in one requirement."""
    found: dict[tuple[str, str], Requirement] = {}
    for one in dict.fromkeys(term):
        at = (one.key, one.operator if one.operator != "In" else f"In {one.values}")
        if at in found and one.operator == "NotIn":
            one = Requirement(one.key, "NotIn", tuple(sorted({*found[at].values, *one.values})))
        found[at] = one
    return tuple(found.values())
