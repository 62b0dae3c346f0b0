# SPDX-License-Identifier: Apache-2.0
"""The requests for another MIG layout of this node, from its label or from the scheduler, and their outcomes.

Rules
- If the label nvidia.com/mig.config names a layout, decisions of the scheduler (GPUNode spec.mig) are refused with that
  reason. Without the label decisions are carried out.
- A `pending` request is tried again after half a minute, then after growing pauses. A label is applied once, and again
  when it changes.
- If NVIDIA's mig-manager runs on the node, the agent changes nothing and logs that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from dovetail.agent.checkpoint import CheckpointError
from dovetail.agent.machine.nvml import NvmlError
from dovetail.agent.mig.manager import Decision, DivisionOutcome, MigManager, NamedLayout
from dovetail.agent.mig.node import StateLabel, another, target_of
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import GPU_NODES, NODES
from dovetail.kube.objects.base import Node
from dovetail.kube.objects.topology import GPUNode, MigLayout, MigState

log = logging.getLogger(__name__)

_AGAIN_S, _AGAIN_MAX_S = 30.0, 300.0
_STATES = {"failed": "refused"}
"""The states of a GPUNode's status that differ from those of outcomes."""


class MigRequests:
    """Watches this node's Node and GPUNode. `changed` is called when `state`, the GPUNode's state of the last decision,
    has changed. While the context `exclusive` is entered, nothing else of this process has NVML open."""

    def __init__(
        self,
        client: Client,
        node_name: str,
        manager: MigManager,
        changed: Callable[[], None],
        exclusive: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self.state: MigState | None = None
        self._manager = manager
        self._changed = changed
        self._exclusive = exclusive
        self._label = StateLabel(client, node_name)
        params = {"fieldSelector": f"metadata.name={node_name}"}
        self._nodes = Reflector(client, NODES, Node, self._node, params=params)
        self._gpu_nodes = Reflector(client, GPU_NODES, GPUNode, self._gpu_node, params=params)
        self._labels: dict[str, str] = {}
        self._wanted: MigLayout | None = None
        self._due = asyncio.Event()
        self._done = ""
        self._reported = ""

    def _node(self, changes: list[Change[Node]]) -> None:
        self._labels = dict(changes[-1].object.metadata.labels)
        self._due.set()

    def _gpu_node(self, changes: list[Change[GPUNode]]) -> None:
        gpu_node = changes[-1].object
        self._wanted = gpu_node.spec.mig
        if self.state is None:
            self.state = gpu_node.status.mig
        self._due.set()

    async def run(self) -> None:
        """Until cancelled. Raises CheckpointError."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._nodes.run())
            tasks.create_task(self._gpu_nodes.run())
            await self._nodes.synced.wait()
            await self._gpu_nodes.synced.wait()
            again_s = _AGAIN_S
            while True:
                self._due.clear()
                again = await self._divide()
                again_s = min(2 * again_s, _AGAIN_MAX_S) if again else _AGAIN_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(again_s if again else None):
                        await self._due.wait()

    async def _divide(self) -> bool:
        """Carry out the request. True if it has to be tried again."""
        if why := another(self._labels):
            if why != self._reported:
                log.warning("%s", why)
            self._reported = why
            return False
        named = target_of(self._labels)
        if named is not None:
            self._refuse(f"the node's label asks for {named}, and takes precedence over the scheduler")
            return named.name != self._done and await self._by_label(named)
        if self._done:
            await self._write_label(None)
            self._done = ""
        wanted = self._wanted
        if wanted is None or (self.state is not None and self.state.id == wanted.id and self._ended):
            return False
        self._set(MigState(wanted.id, "applying"))
        instances = {gpu.uuid: tuple((one.profile, one.start) for one in gpu.instances) for gpu in wanted.gpus}
        outcome = await self._apply(Decision(wanted.id, instances))
        self._set(MigState(wanted.id, _STATES.get(outcome.state, outcome.state), outcome.message))
        return not self._ended

    @property
    def _ended(self) -> bool:
        return self.state is not None and self.state.state in ("applied", "refused")

    def _refuse(self, why: str) -> None:
        wanted = self._wanted
        if wanted is not None and (self.state is None or self.state.id != wanted.id or not self._ended):
            self._set(MigState(wanted.id, "refused", why))

    def _set(self, state: MigState) -> None:
        self.state = state
        self._changed()

    async def _by_label(self, named: NamedLayout) -> bool:
        if self._manager.outcome is None or self._manager.outcome.state != "pending":
            await self._write_label(DivisionOutcome("applying"))
        outcome = await self._apply(named)
        await self._write_label(outcome)
        if outcome.state == "pending":
            return True
        self._done = named.name
        return False

    async def _apply(self, target: NamedLayout | Decision) -> DivisionOutcome:
        try:
            async with self._exclusive():
                outcome = await self._manager.apply(target)
        except (NvmlError, OSError) as error:
            outcome = DivisionOutcome("pending", str(error))
        except CheckpointError as error:
            outcome = DivisionOutcome("failed", str(error))
        level = logging.INFO if outcome.state == "applied" else logging.WARNING
        log.log(level, "%s: %s%s", target, outcome.state, outcome.message and f": {outcome.message}")
        return outcome

    async def _write_label(self, outcome: DivisionOutcome | None) -> None:
        try:
            await self._label.write(outcome)
        except KubeError as error:
            log.warning("the label of the layout's state cannot be written: %s", error)
