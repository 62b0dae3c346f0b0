# SPDX-License-Identifier: Apache-2.0
"""Walks each GPU node to validated: follows what decides about it, and writes its readiness and its start-up taint.

Rules
- Level-triggered: each change of an object of a node, a clock that has come, or a new GPUStack asks for the node again,
  from all that is known now. What is so already is not written.
- A passed validation is written before the taint goes, and this before the pod is deleted: wherever the process ends,
  the next one finds what is left to do.
- The writes of one node are paced (`pace`); what had to wait is written later, as the node is then.
- A request that fails is repeated with growing pauses, and never ends the walk of other nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec.structs import replace

from dovetail.kube.api.errors import Forbidden, KubeError
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.stack import GPUStack, StackStatus
from dovetail.kube.objects.topology import NodeReadiness
from dovetail.operator.nodes.blockers import READY
from dovetail.operator.nodes.boots import boots_now, reboots_in_a_loop
from dovetail.operator.nodes.facts import AGENT_STALE_MS, WalkFacts, has_startup_taint
from dovetail.operator.nodes.gathering import NodeObjects
from dovetail.operator.nodes.pace import WritePace
from dovetail.operator.nodes.reading import NodeReads
from dovetail.operator.nodes.startup_taint import PUT, REMOVE, startup_taint
from dovetail.operator.nodes.summary import blocked, counts
from dovetail.operator.nodes.validating import Validating
from dovetail.operator.nodes.validation import validates_node
from dovetail.operator.nodes.walk import WalkVerdict, readiness, validates, walk
from dovetail.operator.nodes.writer import WalkWriter, same
from dovetail.operator.parts import SharedByParts, StackPart
from dovetail.operator.watched.nodes import WatchedNode
from dovetail.operator.watched.pods import requests_gpus

log = logging.getLogger(__name__)

_AT_ONCE = 16
_RECHECK_SOON_MS, _RECHECK_MS = 5_000, 60_000
_AGAIN_MS, _AGAIN_MOST_MS = 1_000, 60_000
_TAINT_BURST, _TAINT_EVERY_MS = 4, 600_000
_NOT_WAITED_FOR = frozenset({"GpusBusy", "NodeInMaintenance", "NodeCordoned"})
_SETTLE_S = 0.3
_ECHO_MS = 10_000
"""After which a write that no watch has shown is taken for undone."""


def _wall_ms() -> int:
    return round(time.time() * 1000)


class NodeWalks(StackPart):
    """`clock_ms` is epoch time. `alone`: nothing follows NVIDIA's stack and calls `kept_off`.

    readiness   by node what was found last
    """

    def __init__(
        self, shared: SharedByParts, *, clock_ms: Callable[[], int] = _wall_ms, alone: bool = True
    ) -> None:  # fmt: skip
        self._report, self._clock_ms = shared.changed, clock_ms
        self._stack: GPUStack | None = None
        self.readiness: dict[str, NodeReadiness] = {}
        self._objects = NodeObjects(shared.watches, self._changed, clock_ms)
        self._writer = WalkWriter(shared.client)
        self._reads = NodeReads(shared.client, clock_ms)
        self._refused: dict[str, str] = {}
        """By node the write that the API server refused."""
        self._validating = Validating(self._writer, self._reads, self._objects.validations, self._at)
        self._kept_off: frozenset[str] | None = frozenset() if alone else None
        self._paces = WritePace()
        self._readied = WritePace(_TAINT_BURST, _TAINT_EVERY_MS)
        """Of the writes that a node is ready: such news do not wait for what was written before."""
        self._taints = WritePace(_TAINT_BURST, _TAINT_EVERY_MS)
        self._removals = WritePace()
        """Of the taints that are removed: pods that wait for that need not wait for what was put before."""
        self._sent: dict[str, tuple[NodeReadiness, str, int]] = {}
        """By node what was written last, the version of the GPUNode at that time, and the time."""
        self._tainted: dict[str, tuple[str, int]] = {}
        """By node the version of the Node at the last write of its taint, and the time."""
        self._due: dict[str, None] = {}
        self._times: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._failures: dict[str, int] = {}
        self._woken = asyncio.Event()
        self._begun = False
        """Whether all nodes were asked for since this process has a stack."""

    def follow(self, stack: GPUStack | None) -> None:
        """The stack that counts; all nodes are asked for if its spec has changed."""
        before, self._stack = self._stack, stack
        if before is None or stack is None or (before.metadata.uid, before.spec) != (stack.metadata.uid, stack.spec):
            self._changed(None)

    def kept_off(self, nodes: frozenset[str]) -> None:
        """The start-up taint keeps pods of NVIDIA's stack off these nodes, or would."""
        before = self._kept_off
        self._kept_off = nodes
        if before is None:
            self._changed(None)
        for name in nodes ^ (before or frozenset()):
            self._changed(name)

    def report(self, status: StackStatus) -> StackStatus:
        """The status with the counts of nodes, and those that are blocked. What was written before this process stays
        until all nodes were asked for."""
        if not self._begun:
            before = self._stack.status if self._stack is not None else status
            return replace(status, nodes=before.nodes, blocked=before.blocked)
        gpu_nodes = {name: self._objects.gpu_node(name) for name in self.readiness}
        return replace(status, nodes=counts(self.readiness, gpu_nodes), blocked=blocked(self.readiness))

    def waits(self) -> str:
        """Which right is missing, or which nodes somebody has to do something about. A node that is in maintenance, or
        whose GPUs are busy, is not waited for."""
        refused = [*self._reads.problems.values(), *(self._refused[name] for name in sorted(self._refused))]
        if refused:
            return refused[0]
        found = [one for one in blocked(self.readiness) if one.reason not in _NOT_WAITED_FOR]
        if not found:
            return ""
        first = found[0]
        return f"{len(found)} of {len(self.readiness)} GPU nodes; {first.name}: {first.reason}: {first.message}"

    async def run(self) -> None:
        """Walk until cancelled."""
        await self._objects.synced()
        while True:
            # Changes that come together are written together.
            await asyncio.sleep(_SETTLE_S)
            self._woken.clear()
            await self.step()
            if self._stack is not None and not self._begun:
                self._begun = True
                self._report()
            wait_s = max(0, self._heap[0][0] - self._clock_ms()) / 1000 if self._heap else None
            if not self._due:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._woken.wait()

    async def step(self) -> None:
        """Do all that is due now."""
        now_ms = self._clock_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, name = heapq.heappop(self._heap)
            if self._times.get(name) == at_ms:
                del self._times[name]
                self._due[name] = None
        names, self._due = list(self._due), {}
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str) -> None:
            async with slots:
                await self._attempt(name)

        await asyncio.gather(*map(one, names))

    async def release(self, stack: GPUStack) -> str:
        """Remove the start-up taints, the validation pods and the readiness of GPUNodes."""
        await self._objects.synced()
        self._stack = None
        for name in self._objects.names():
            await self._validating.clear(name)
        for node in list(self._objects.nodes.known.values()):
            if has_startup_taint(node.spec.taints) and not await self._writer.taint(node, put=False):
                return f"the start-up taint of node {node.metadata.name}"
        for gpu_node in list(self._objects.gpu_nodes.known.values()):
            if gpu_node.status.readiness is not None:
                await self._writer.forget_readiness(gpu_node.metadata.name)
        self.readiness.clear()
        return ""

    def _changed(self, name: str | None) -> None:
        for one in self._objects.names() if name is None else (name,):
            self._due[one] = None
        self._woken.set()

    def _at(self, name: str, at_ms: int) -> None:
        """Ask for the node at that time at the latest."""
        if at_ms < self._times.get(name, at_ms + 1):
            self._times[name] = at_ms
            heapq.heappush(self._heap, (at_ms, name))
            self._woken.set()

    async def _attempt(self, name: str) -> None:
        try:
            await self._walk(name)
            self._failures.pop(name, None)
            self._refused.pop(name, None)
        except KubeError as error:
            if isinstance(error, Forbidden):
                self._refused[name] = str(error)
            count = self._failures[name] = self._failures.get(name, 0) + 1
            again_ms = min(_AGAIN_MOST_MS, _AGAIN_MS << min(count - 1, 10))
            level = logging.WARNING if count == 1 else logging.DEBUG
            log.log(level, "node %s: %s; next attempt in %d s", name, error, again_ms // 1000)
            self._at(name, self._clock_ms() + again_ms)

    async def _walk(self, name: str) -> None:
        node, stack, now_ms = self._objects.node(name), self._stack, self._clock_ms()
        if node is None:
            await self._validating.clear(name)
            self._forget(name)
            return
        if stack is None:
            return
        if not self._objects.walked(node):
            await self._leave(node, now_ms)
            return
        facts = await self._objects.facts(node, stack, self._reads, now_ms)
        kept_off = None if self._kept_off is None else name in self._kept_off
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        facts = replace(facts, before=self._before(name, facts), kept_off=kept_off)
        # What was found last may not be written yet: writes are paced.
        known = self.readiness.get(name, facts.before)
        boots = boots_now(known.boots if known is not None else None, node.status.node_info.boot_id, now)
        facts = replace(facts, boots=boots, reboots=reboots_in_a_loop(boots, now_ms))
        if validates(facts):
            facts = replace(facts, validation=await self._validating.progress(node, facts, stack, now_ms))
        else:
            await self._validating.clear(name)
        verdict = walk(facts)
        found = readiness(facts, verdict, now)
        if self.readiness.get(name) != found:
            self.readiness[name] = found
            self._report()
        written = await self._write(node, found, now_ms)
        if written:
            await self._set_taint(node, facts, verdict, now_ms)
        if written and verdict.step == READY:
            await self._validating.clear(name)
        # What events show is not watched: a new blocker is asked about soon, an old one now and then.
        pause_ms = min(_RECHECK_MS, max(_RECHECK_SOON_MS, now_ms - epoch_ms(found.since)))
        self._at(name, now_ms + (AGENT_STALE_MS if verdict.step == READY else pause_ms))

    def _before(self, name: str, facts: WalkFacts) -> NodeReadiness | None:
        """The readiness as it is stored now, also while the watch has not shown our last write."""
        sent, gpu_node = self._sent.get(name), self._objects.gpu_node(name)
        version = gpu_node.metadata.resource_version if gpu_node is not None else ""
        if sent is not None and sent[1] == version and self._clock_ms() - sent[2] < _ECHO_MS:
            return sent[0]
        self._sent.pop(name, None)
        return facts.before

    async def _write(self, node: WatchedNode, found: NodeReadiness, now_ms: int) -> bool:
        """Write the readiness if it differs; False if it has to wait. Raises ApiError."""
        name = node.metadata.name
        gpu_node, sent = self._objects.gpu_node(name), self._sent.get(name)
        if (sent is not None and sent[0] == found) or (sent is None and same(found, gpu_node)):
            return True
        pace = self._readied if found.step == READY else self._paces
        due_ms = pace.due_ms(name, now_ms)
        if due_ms > now_ms:
            self._at(name, due_ms)
            return False
        pace.count(name, now_ms)
        await self._writer.readiness(node, found)
        self._sent[name] = (found, gpu_node.metadata.resource_version if gpu_node is not None else "", now_ms)
        log.info("node %s: %s", name, f"{found.step}: {found.reason}: {found.message}" if found.reason else found.step)
        return True

    async def _set_taint(self, node: WatchedNode, facts: WalkFacts, verdict: WalkVerdict, now_ms: int) -> None:
        act = startup_taint(facts, verdict)
        if act == PUT:
            # Jobs that run there are not to be followed by none.
            pods = await self._reads.pods_on(facts.name) if self._may_taint(node, now_ms, put=True) else ()
            if any(requests_gpus(pod) and not validates_node(pod) for pod in pods):
                return
        if act in (PUT, REMOVE):
            await self._taint(node, now_ms, put=act == PUT)

    def _may_taint(self, node: WatchedNode, now_ms: int, *, put: bool) -> bool:
        name, pace = node.metadata.name, self._taints if put else self._removals
        version, at_ms = self._tainted.get(name, ("", 0))
        if version == node.metadata.resource_version and now_ms - at_ms < _ECHO_MS:
            return False
        due_ms = pace.due_ms(name, now_ms)
        if due_ms > now_ms:
            self._at(name, due_ms)
        return due_ms <= now_ms

    async def _taint(self, node: WatchedNode, now_ms: int, *, put: bool) -> None:
        name = node.metadata.name
        if not self._may_taint(node, now_ms, put=put):
            return
        done = await self._writer.taint(node, put=put)
        if done:
            (self._taints if put else self._removals).count(name, now_ms)
            self._tainted[name] = (node.metadata.resource_version, now_ms)
            log.info("node %s: the start-up taint is %s", name, "put" if put else "removed")
        else:
            self._at(name, now_ms + _AGAIN_MS)

    async def _leave(self, node: WatchedNode, now_ms: int) -> None:
        """The node is not walked any more: it keeps neither our taint nor a validation pod."""
        await self._validating.clear(node.metadata.name)
        if has_startup_taint(node.spec.taints):
            await self._taint(node, now_ms, put=False)
        gpu_node = self._objects.gpu_node(node.metadata.name)
        if gpu_node is not None and gpu_node.status.readiness is not None:
            await self._writer.forget_readiness(node.metadata.name)
        self.readiness.pop(node.metadata.name, None)

    def _forget(self, name: str) -> None:
        self._validating.forget(name)
        for known in (self.readiness, self._sent, self._tainted, self._failures, self._refused, self._times):
            known.pop(name, None)
        for pace in (self._paces, self._readied, self._taints, self._removals):
            pace.forget(name)
