# SPDX-License-Identifier: Apache-2.0
"""How many replicas a workload needs, from the load of those that it has.

Rules
- Requests that run and wait are divided by the target of a replica, and the used parts of the KV caches by theirs; the
  larger number counts. So a load that stays the same needs the same number, whatever there is now.
- Without metrics of a replica on a node (it starts, or is not scraped) no fewer than there are: what it does is not
  known. Without metrics of any, nothing is known. A replica that waits for a node does nothing.
- A replica that sleeps counts as one: it is woken before one is added.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import ceil

from msgspec import Struct

from dovetail.monitoring.engine_load import EngineLoad


class NeedTarget(Struct, frozen=True):
    """What a replica is to have at most, requests and percent of its KV cache, and how many replicas there may be."""

    requests: int
    cache_percent: int = 80
    least: int = 1
    most: int = 100


class ReplicaNeed(Struct, frozen=True):
    """The number of replicas, None if it is not known, and what it is based on, in words."""

    replicas: int | None
    because: str


def need(replicas: int, pods: Collection[str], loads: Mapping[str, EngineLoad], target: NeedTarget) -> ReplicaNeed:
    """The need of a workload with so many `replicas`, whose running ones are `pods`. `loads` are by name of pod."""
    known = [loads[pod] for pod in pods if pod in loads]
    requests = [one.running + one.waiting for one in known if one.running is not None and one.waiting is not None]
    caches = [one.cache_percent for one in known if one.cache_percent is not None]
    if not requests and not caches:
        return ReplicaNeed(None, f"no metrics of an engine in its {len(pods)} running pods")
    by_requests, by_cache = ceil(sum(requests) / target.requests), ceil(sum(caches) / target.cache_percent)
    found = max(by_requests, by_cache)
    because = f"{sum(requests):.0f} requests, {target.requests} for each replica"
    if by_cache > by_requests:
        because = f"KV caches full by {sum(caches):.0f} % of one, {target.cache_percent} % for each replica"
    unread = len(pods) - max(len(requests), len(caches))
    if unread > 0 and found < replicas:
        found, because = replicas, f"{because}; no fewer, as {unread} without metrics may do anything"
    asleep = sum(one.awake is False for one in known)
    if asleep:
        because += f"; {asleep} asleep"
    if not target.least <= found <= target.most:
        found = min(max(found, target.least), target.most)
        because += f"; within {target.least} to {target.most}"
    return ReplicaNeed(found, because)
