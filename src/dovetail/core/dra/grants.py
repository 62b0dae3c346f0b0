# SPDX-License-Identifier: Apache-2.0
"""The allocation as it is written into a claim: its devices, and the nodes where they can be used.

Rules: an allocation with a device of one node, or with one that binds to its node, is for that node; else it can be
used on the nodes that all its slices are for. A share of a device has an id of its own.
Source: dynamic-resource-allocation/structured, createNodeSelector (1.37).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from dovetail.core.dra.capacity import written
from dovetail.core.dra.pools import PoolId, PoolOffer
from dovetail.core.dra.taken import Pick
from dovetail.core.dra.types import SHARED, Allocation, Claim, Device, Grant
from dovetail.core.model import NodeTerm, Requirement


def allocation(
    claim: Claim, node: str, offers: Sequence[tuple[PoolId, PoolOffer]], picks: Sequence[Pick]
) -> Allocation:
    """The allocation of the claim by the picks of the devices that are offered to the node."""
    found = [offers[pick.bit] for pick in picks]
    grants = tuple([_grant(claim, pool, offer.device, pick) for pick, (pool, offer) in zip(picks, found, strict=True)])
    only, terms = _usable(node, [offer for _, offer in found])
    return Allocation(grants, only, terms)


def _grant(claim: Claim, pool: PoolId, device: Device, pick: Pick) -> Grant:
    """The result for one device. A share has an id that no other share has."""
    request, share = pick.request, ""
    consumed: tuple[tuple[str, int], ...] = ()
    if pick.draw is not None:
        share = _share_id("/".join((claim.uid, request.name, *pool, device.name)))
        consumed = tuple(
            (written(name, capacity), milli) for (name, capacity), milli in zip(device.capacity, pick.draw, strict=True)
        )
    return Grant(
        request.name,
        *pool,
        device.name,
        request.admin_access,
        share,
        consumed,
        request.tolerations,
        device.conditions,
        device.failure_conditions,
    )


def _share_id(name: str) -> str:
    """A UUID that is derived from the name (RFC 9562, version 8)."""
    code = sha256(name.encode()).hexdigest()
    return f"{code[:8]}-{code[8:12]}-8{code[13:16]}-8{code[17:20]}-{code[20:32]}"


def _usable(node: str, offers: Sequence[PoolOffer]) -> tuple[str, tuple[NodeTerm, ...] | None]:
    """The only node, or the node terms, for which an allocation of these devices can be used; empty for all nodes. All
    terms are joined into one. Source: createNodeSelector."""
    expressions: list[Requirement] = []
    fields: list[Requirement] = []
    for offer in offers:
        if offer.node or offer.device.binds_to_node or (offer.node_terms is not None and len(offer.node_terms) > 1):
            return node, None
        for term in offer.node_terms or ():
            for joined, own in ((expressions, term.expressions), (fields, term.fields)):
                known = {(one.key, one.operator, frozenset(one.values)) for one in joined}
                joined += [one for one in own if (one.key, one.operator, frozenset(one.values)) not in known]
    if not expressions and not fields:
        return SHARED, None
    return SHARED, (NodeTerm(tuple(expressions), tuple(fields)),)
