# SPDX-License-Identifier: Apache-2.0
"""The GPUNode of this node: how it is written. `gpunode_status` builds its status.

Rules
- The object is owned by the Node and deleted with it. This agent alone applies the whole status (server-side apply);
  the spec belongs to the scheduler and is left as it is.
- An unchanged status is written only every five minutes, for `observedTime`. A condition keeps the time of its last
  transition while its status stays the same.
- That pods are idle is written with whatever is written next, five minutes later at most: it changes often, and it is
  not urgent. That one is not idle any more is written at once. The processes of pods that hold their devices are
  written so, too.
- A monotonic clock decides when to write; the time of day is only written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from dovetail.agent.publish.gpunode_status import agent_condition
from dovetail.kube.api.client import APPLY_PATCH, Client
from dovetail.kube.api.decoding import Identified
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.api.resources import GPU_NODES, NODES
from dovetail.kube.objects.topology import Condition, GPUNode, GPUNodeStatus

RENEW_S = 300.0
_MANAGER = "dovetail-agent"


class GPUNodeWriter:
    """Writes the GPUNode `node_name`. `clock_s` is a monotonic clock, `now` the time of day."""

    def __init__(
        self,
        client: Client,
        node_name: str,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._name = node_name
        self._clock_s = clock_s
        self._now = now
        self._exists = False
        self._conditions: tuple[Condition, ...] = ()
        self._before = GPUNodeStatus()
        self._sent: GPUNodeStatus | None = None
        self._written: GPUNodeStatus | None = None
        self._written_s = 0.0

    async def write(self, status: GPUNodeStatus) -> None:
        """Write the status, if it is due. Raises ApiError; then the next call writes it."""
        # If the clock has gone back, the write is due.
        if 0 <= self._clock_s() - self._written_s < RENEW_S and _is_not_urgent(status, self._written):
            return
        if not self._exists:
            await self._create()
        try:
            await self._write_status(status)
        except NotFound:
            # The object was deleted, or its Node was created again.
            self._exists = False
            await self._create()
            await self._write_status(status)

    @property
    def idle(self) -> frozenset[str]:
        """The pods (uid) that were written as idle."""
        return frozenset(one.uid for one in self._written.idle_pods) if self._written is not None else frozenset()

    async def before(self) -> GPUNodeStatus:
        """The status that the object had when this process first read it. Raises ApiError."""
        if not self._exists:
            await self._create()
        return self._before

    async def amend(self, condition: Condition) -> bool:
        """Set this condition, and Ready to False, and keep the rest of the status, also of an earlier process. Returns
        False, and writes nothing, if no agent has written a status before. Raises ApiError."""
        # The fence and the readiness are written by their own requests. A status that was cut off while it was sent
        # may have arrived.
        before = self._sent or msgspec.structs.replace(await self.before(), fence="", readiness=None)
        if before.agent is None:
            return False
        if any(_same(condition, one) for one in before.conditions):
            return True
        ready = next((one for one in before.conditions if one.type == "Ready" and one.status == "False"), None)
        ready = ready or agent_condition("Ready", "PluginNotRegistered", condition.message)
        now = {one.type: one for one in (*before.conditions, ready, condition)}
        try:
            await self._write_status(msgspec.structs.replace(before, conditions=(*now.values(),)))
        except NotFound:
            return False
        return True

    async def _create(self) -> None:
        """Create the object or set its owner, and read its status."""
        node = await self._client.request("GET", NODES.path(name=self._name), decode=Identified)
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": node.metadata.uid}
        stored = await self._apply({"ownerReferences": [owner]}, {})
        self._exists, self._before = True, stored.status
        self._conditions = self._conditions or stored.status.conditions

    async def _write_status(self, status: GPUNodeStatus) -> None:
        now = self._now().replace(microsecond=0)
        before = {one.type: one for one in self._conditions}
        conditions = tuple(
            msgspec.structs.replace(one, last_transition_time=_since(one, before.get(one.type), now))
            for one in status.conditions
        )
        whole = msgspec.structs.replace(status, observed_time=now, conditions=conditions)
        sent, self._sent = self._sent, status
        try:
            await self._apply({}, {"status": document(whole)}, "status")
        except KubeError:
            self._sent = sent
            raise
        self._conditions = conditions
        self._written, self._written_s = status, self._clock_s()

    async def _apply(self, metadata: dict[str, Any], rest: dict[str, Any], subresource: str = "") -> GPUNode:
        return await self._client.request(
            "PATCH",
            GPU_NODES.path(name=self._name, subresource=subresource),
            gpu_node(self._name, metadata, rest),
            params={"fieldManager": _MANAGER, "force": "true"},
            content_type=APPLY_PATCH,
            decode=GPUNode,
        )


def _is_not_urgent(status: GPUNodeStatus, written: GPUNodeStatus | None) -> bool:
    """Whether the status is the one that was written but for processes of holders, and pods that are idle by now. One
    that is not idle any more must not be taken for idle."""
    if written is None:
        return False
    same = msgspec.structs.replace(
        status, idle_pods=written.idle_pods, holder_processes=written.holder_processes
    )  # fmt: skip
    if same != written:
        return False
    return {one.uid for one in written.idle_pods} <= {one.uid for one in status.idle_pods}


def _same(one: Condition, other: Condition) -> bool:
    """Whether two conditions are equal but for their times."""
    return msgspec.structs.replace(other, last_transition_time=one.last_transition_time) == one


def _since(now: Condition, before: Condition | None, moment: datetime) -> datetime:
    kept = before.last_transition_time if before is not None and before.status == now.status else None
    return kept or moment


def gpu_node(name: str, metadata: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a GPUNode of this name; `rest` are its fields besides the metadata."""
    head = {"apiVersion": GPU_NODES.api_version, "kind": GPU_NODES.kind}
    return {**head, "metadata": {"name": name, **metadata}, **rest}


def document(status: GPUNodeStatus) -> dict[str, Any]:
    """The status as JSON; unknown fields are left out."""
    found: dict[str, Any] = _without_unknown(msgspec.to_builtins(status))
    return found


def _without_unknown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_unknown(one) for key, one in value.items() if one is not None and one != ""}
    if isinstance(value, list | tuple):
        return [_without_unknown(one) for one in value]
    return value
