# SPDX-License-Identifier: Apache-2.0
"""Alternatives, offers, requests and leases for a model: in words, and as JSON with units in the names.

Rules: what others wrote is cleaned, and quoted in texts (`quoting`). A list of nodes has a bound, and shows how many
are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from dovetail.core.bargaining.types import Holding, LeaseAlternative, Offer
from dovetail.core.model import GPU
from dovetail.plane.lease import PlaneLease
from dovetail.plane.mcp.quoting import clean, quoted

MOST_NODES = 64
"""Nodes of one lease, and of all leases of a list."""
_MINUTE_MS = 60_000
_MIG_PREFIX = "nvidia.com/mig-"


def span(ms: int) -> str:
    """A time in words."""
    seconds = max(0, -(-ms // 1000))
    return f"{seconds} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def device(alternative: LeaseAlternative) -> str:
    """What one device of it is."""
    if alternative.resource.startswith(_MIG_PREFIX):
        return f"MIG {clean(alternative.resource.removeprefix(_MIG_PREFIX))}"
    if alternative.gpu_milli:
        return f"{alternative.gpu_milli / 1000:g} of a GPU"
    if alternative.gpu_memory_mib:
        return f"{alternative.gpu_memory_mib / 1024:g} GiB of a GPU"
    return "GPU" if alternative.resource == GPU else clean(alternative.resource)


def in_words(alternative: LeaseAlternative) -> str:
    """An alternative as one phrase."""
    parts = [f"{alternative.count} x {device(alternative)}"]
    if alternative.least and alternative.least != alternative.count:
        parts.append(f"or at least {alternative.least}")
    if alternative.models:
        parts.append("of " + " or ".join([quoted(model) for model in alternative.models]))
    if alternative.per_node > 1:
        parts.append(f"{alternative.per_node} together on a node")
    if alternative.nvlink:
        parts.append("with NVLink")
    if alternative.within:
        parts.append("within one " + " and ".join([quoted(key) for key in alternative.within]))
    parts.append(f"for {span(alternative.duration_ms)}")
    return f"{', '.join(parts)}, {alternative.service}"


def alternative_content(alternative: LeaseAlternative) -> dict[str, object]:
    """The same as JSON."""
    return {
        "gpus": alternative.count,
        "device": device(alternative),
        "models": [clean(model) for model in alternative.models],
        "per_node": alternative.per_node,
        "minutes": round(alternative.duration_ms / _MINUTE_MS, 2),
        "service": alternative.service.value,
    }


def nodes_content(holdings: Sequence[Holding], most: int = MOST_NODES) -> dict[str, object]:
    """The devices by node: indices of GPUs as ranges, MIG instances with their GPU."""
    found: list[dict[str, object]] = []
    by_node = sorted(holdings, key=lambda holding: holding.node)
    nodes = [(node, list(parts)) for node, parts in groupby(by_node, key=lambda holding: holding.node)]
    for node, parts in nodes[:most]:
        gpus = sorted({gpu for part in parts for gpu in part.devices})
        instances = [f"{clean(str(one.profile))} on {one.gpu}" for part in parts for one in part.instances]
        one: dict[str, object] = {"node": clean(node)}
        if gpus:
            one["gpus"] = ranges(gpus)
        if instances:
            one["mig"] = instances
        found.append(one)
    left = len(nodes) - len(found)
    return {"devices": found, **({"nodes_left_out": left} if left else {})}


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as in "0-3,6"."""
    parts = list[list[int]]()
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join([str(first) if first == last else f"{first}-{last}" for first, last in parts])


def nodes_in_words(nodes: dict[str, object]) -> str:
    """What nodes_content has, as one phrase."""
    devices, left = nodes["devices"], nodes.get("nodes_left_out", 0)
    assert isinstance(devices, list)
    parts = []
    for one in devices:
        what = [f"GPUs {one['gpus']}"] if "gpus" in one else []
        what += [f"MIG {', '.join(one['mig'])}"] if "mig" in one else []
        parts.append(f"{quoted(one['node'])}: {' and '.join(what)}")
    if left:
        parts.append(f"{left} more nodes")
    return "; ".join(parts)


def offer_line(handle: str, offer: Offer, now_ms: int) -> str:
    """One offer in words."""
    if offer.now:
        where = nodes_in_words(nodes_content(offer.holdings, 4))
        start = f"now, on {where}" if where else "now"
    else:
        start = f"starts in {span(offer.start_ms - now_ms)} at the latest"
    why = f". Why not better: {quoted(offer.why)}" if offer.why else ""
    return f"- {handle}: {in_words(offer.alternative)}; {start}{why}"


def offer_content(handle: str, offer: Offer, now_ms: int) -> dict[str, object]:
    """One offer as JSON."""
    return {
        "offer": handle,
        "now": offer.now,
        "starts_in_seconds": max(0, (offer.start_ms - now_ms) // 1000),
        **alternative_content(offer.alternative),
        **(nodes_content(offer.holdings) if offer.now else {}),
        "why": clean(offer.why),
    }


def lease_state(lease: PlaneLease) -> str:
    """live: it may be used; unsure: the broker was not heard for too long; over."""
    return "over" if lease.over.is_set() else "live" if lease.live else "unsure"


def lease_line(handle: str, lease: PlaneLease, name: str, most: int) -> str:
    """A lease in words."""
    record, left_ms = lease.record, round(lease.remaining().total_seconds() * 1000)
    about = f" {quoted(name)}" if name else ""
    state = lease_state(lease)
    if state == "unsure":
        state = "unsure: the broker was not heard for too long, do not use the devices now"
    where = nodes_in_words(nodes_content(record.holdings, most))
    revoked = ""
    if record.revocation is not None:
        revoked = f"; REVOKED ({record.revocation.cause}): {quoted(record.revocation.message)}"
    return (
        f"- {handle}{about}: {in_words(record.alternative)}; {state}; ends in {span(left_ms)}; fence {record.fence}; "
        f"devices {where}{revoked}"
    )


def lease_content(handle: str, lease: PlaneLease, name: str, most: int) -> dict[str, object]:
    """A lease as JSON."""
    record = lease.record
    found: dict[str, object] = {
        "lease": handle,
        "name": clean(name),
        "state": lease_state(lease),
        **alternative_content(record.alternative),
        "ends_in_seconds": int(lease.remaining().total_seconds()),
        "fence": record.fence,
        "grace_seconds": record.grace_ms // 1000,
        "object": clean(record.id),
        **nodes_content(record.holdings, most),
    }
    if record.revocation is not None:
        cause, message = record.revocation.cause.value, clean(record.revocation.message)
        found["revoked"] = {"cause": cause, "message": message}
    return found
