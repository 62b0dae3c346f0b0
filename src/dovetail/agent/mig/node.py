# SPDX-License-Identifier: Apache-2.0
"""The node labels for MIG layouts, as NVIDIA's mig-manager defines them.

Rules: `nvidia.com/mig.config` names the wanted layout. `nvidia.com/mig.config.state` is its state, with the values of
mig-manager, written by server-side apply with a field manager of its own. If the GPU operator runs mig-manager on the
node, mig-manager alone repartitions GPUs; the label `nvidia.com/gpu.deploy.mig-manager` is then `true` or, while it
works, `paused-...`.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.agent.mig.manager import DivisionOutcome, NamedLayout, State
from dovetail.agent.publish.labels import labels_body
from dovetail.kube.api.client import Client
from dovetail.kube.api.resources import NODES

MANAGER = "dovetail-agent-mig"
CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
_DEPLOYED = "nvidia.com/gpu.deploy.mig-manager"
_STATES: dict[State, str] = {
    "applying": "pending",
    "pending": "pending",
    "applied": "success",
    "refused": "failed",
    "failed": "failed",
}


def target_of(labels: Mapping[str, str]) -> NamedLayout | None:
    """The layout that the label names; None without the label."""
    name = labels.get(CONFIG, "")
    return NamedLayout(name) if name else None


def another(labels: Mapping[str, str]) -> str:
    """Why the agent may not repartition GPUs of this node, "" if it may."""
    deployed = labels.get(_DEPLOYED, "")
    if deployed in ("", "false"):
        return ""
    return (
        f"NVIDIA's mig-manager divides the GPUs of this node ({_DEPLOYED}={deployed}): set it to false to change that"
    )


class StateLabel:
    """The label of this node's Node object with the state of a layout."""

    def __init__(self, client: Client, node: str) -> None:
        self._client = client
        self._path = NODES.path(name=node)
        self._node = node

    async def write(self, outcome: DivisionOutcome | None) -> None:
        """Write the state; None removes the label. Raises ApiError."""
        labels = {} if outcome is None else {STATE: _STATES[outcome.state]}
        # A mig-manager that ran here before may own the label.
        await self._client.apply(self._path, labels_body(self._node, labels), force=True, field_manager=MANAGER)
