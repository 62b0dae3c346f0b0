# SPDX-License-Identifier: Apache-2.0
"""A live cluster as a state of the core."""

from __future__ import annotations

import time

from msgspec import Struct

from dovetail.core.cycle import apply_events
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import discover
from dovetail.kube.translate.sources import read_once
from dovetail.kube.translate.translator import Translator


class LiveCluster(Struct, frozen=True):
    """A cluster at the time of the read. `feed` has translated its objects, and knows more of them than the core."""

    state: State
    feed: Translator

    @property
    def schedulers(self) -> dict[str, str]:
        """By pod (namespace/name), the schedulerName of the pods of other schedulers."""
        return self.feed.schedulers or {}


async def read_cluster(config: ClusterConfig, policy: Policy, scheduler_name: str) -> LiveCluster:
    """The cluster now, with the pods of `scheduler_name` as ours. Raises KubeError where a list that is served cannot
    be read."""
    state, feed = State(policy), Translator(scheduler_name)
    feed.schedulers = {}
    async with Client(config, user_agent="dovetail") as client:
        apply_events(state, await read_once(client, await discover(client), feed), _now_ms())
    state.advance(_now_ms())
    return LiveCluster(state, feed)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
