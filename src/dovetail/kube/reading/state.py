# SPDX-License-Identifier: Apache-2.0
"""A live cluster as a state of the core."""

from __future__ import annotations

import time

from dovetail.core.cycle import enter
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import Served, discover
from dovetail.kube.api.lease import LEASE_LABEL, SCHEDULER_NAME
from dovetail.kube.api.resources import LEASES
from dovetail.kube.objects.base import ObjectMeta, Wire
from dovetail.kube.reading.lists import ListRequest, list_permitted
from dovetail.kube.reading.live_cluster import LiveCluster as LiveCluster
from dovetail.kube.translate.quarantine_budget import QUARANTINE_BUDGET, with_budget
from dovetail.kube.translate.sources import read_once
from dovetail.kube.translate.translator import Translator


async def read_cluster(
    config: ClusterConfig, policy: Policy, scheduler_name: str, quarantine_budget: str = "", *, ended: bool = False
) -> LiveCluster:
    """The cluster now, with the pods of `scheduler_name` as ours, and the quarantine budget of the scheduler, or this
    one if it is not "". `ended`: its finished pods are kept, too. Raises KubeError where a list that is served cannot
    be read."""
    feed = Translator(scheduler_name)
    feed.schedulers = {}
    feed.over = [] if ended else None
    async with Client(config, user_agent="dovetail") as client:
        served = await discover(client)
        budget = quarantine_budget or await _budget(client, served, scheduler_name)
        state = State(with_budget(policy, budget) if budget else policy)
        enter(state, await read_once(client, served, feed), _now_ms())
    return LiveCluster(state, feed, budget)


class _Lease(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


async def _budget(client: Client, served: Served, scheduler_name: str) -> str:
    """The budget on the leases of this scheduler; "" if they have none or may not be listed, or do not agree."""
    reply = await list_permitted(client, served, ListRequest(LEASES, _Lease, LEASE_LABEL))
    annotations = [one.metadata.annotations for one in reply.objects or ()]
    found = {one.get(QUARANTINE_BUDGET, "") for one in annotations if one.get(SCHEDULER_NAME) == scheduler_name}
    if len(found) != 1:
        return ""
    budget: str = found.pop()
    try:
        with_budget(Policy(), budget)
    except ValueError:
        return ""
    return budget


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
