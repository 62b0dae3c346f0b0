# SPDX-License-Identifier: Apache-2.0
"""What tests with a scheduler on a playground see of an agent that has an endpoint."""

from __future__ import annotations

import base64
from itertools import count

from dovetail.agentplanes import names
from dovetail.agentplanes.credentials import SECRET
from dovetail.apiserver.objects import Object, labels_of
from tests.scheduler.leased import LeasedCluster

AGENT = "tuner"
_numbers = count()


def new_address() -> str:
    """Another address of this machine each time: among free ports alone a process may get the one of the process
    before it, and leaves the Secret as it is."""
    return f"127.0.0.{2 + next(_numbers) % 250}:0"


def secret(cluster: LeasedCluster) -> dict[str, str]:
    """What the agent finds in its namespace; {} where nothing is there."""
    found = cluster.playground.store.get("secrets", AGENT, SECRET)
    return {key: base64.b64decode(value).decode() for key, value in (found or {}).get("data", {}).items()}


def carried(cluster: LeasedCluster) -> list[Object]:
    """The pods on the host."""
    return [pod for pod in cluster.playground.store.list("pods") if names.POD_UID in labels_of(pod)]
