# SPDX-License-Identifier: Apache-2.0
"""The labels by which people and NVIDIA's mig-manager speak of a node's layout.

Rules: `nvidia.com/mig.config` names the layout that somebody wants; `nvidia.com/mig.config.state` says how far it is,
in the words of mig-manager, and is written by server-side apply under a manager of its own. Where the GPU operator has
mig-manager on the node, it alone divides GPUs: the operator says so by `nvidia.com/gpu.deploy.mig-manager`, `true` or,
while it works, `paused-...`.
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
    """The layout that the label asks for; None where it asks for none."""
    name = labels.get(CONFIG, "")
    return NamedLayout(name) if name else None


def another(labels: Mapping[str, str]) -> str:
    """Why the GPUs of this node are not ours to divide; "" where they are."""
    deployed = labels.get(_DEPLOYED, "")
    if deployed in ("", "false"):
        return ""
    return (
        f"NVIDIA's mig-manager divides the GPUs of this node ({_DEPLOYED}={deployed}): set it to false to change that"
    )


class StateLabel:
    """The label of this node's Node object that says how far a layout is."""

    def __init__(self, client: Client, node: str) -> None:
        self._client = client
        self._path = NODES.path(name=node)
        self._node = node

    async def write(self, outcome: DivisionOutcome | None) -> None:
        """None takes it away. Raises ApiError."""
        labels = {} if outcome is None else {STATE: _STATES[outcome.state]}
        # A mig-manager that was here before has left its last word.
        await self._client.apply(self._path, labels_body(self._node, labels), force=True, field_manager=MANAGER)
