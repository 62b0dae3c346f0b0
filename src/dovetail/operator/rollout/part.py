# SPDX-License-Identifier: Apache-2.0
"""The rollout as a part of the operator: it follows the objects, writes down what it is about to do, and does it.

Rules
- The pods of DaemonSets with `updateStrategy: OnDelete` are replaced by deleting them. `adjusted` writes into each
  template which one it is, and its pods then bear that mark.
- A pass begins once the DaemonSets in the cluster have the templates of the spec in force. It reads what is there,
  writes the record into the ControllerRevision where it has changed, and then acts. All acts may be repeated.
- Pods of users are listed only while a change waits for empty nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import PODS
from dovetail.kube.objects.holding import UNFINISHED, HoldingPod
from dovetail.kube.objects.stack import GPUStack, RolloutStatus, StackStatus
from dovetail.operator.fleet import Holders
from dovetail.operator.parts import SharedByParts, StackPart
from dovetail.operator.rendering.stack_objects import AGENT_NAMESPACE, Document
from dovetail.operator.rollout.acts import RolloutActs
from dovetail.operator.rollout.facts import StackObjects, facts, holders_of
from dovetail.operator.rollout.record import RolloutPhase, RolloutRecord
from dovetail.operator.rollout.report import measure, rollout_status
from dovetail.operator.rollout.revisions import Revisions
from dovetail.operator.rollout.rollout import RolloutNode, RolloutPass, RolloutPlan, advance
from dovetail.operator.rollout.templates import stamped
from dovetail.operator.watched.nodes import content, service_state
from dovetail.operator.watched.pods import NAME_LABEL, WatchedPod
from dovetail.operator.watched.watches import SharedReflector, settled

log = logging.getLogger(__name__)

_SETTLE_S, _UNSYNCED_S = 0.2, 0.05
_AGAIN_S, _AGAIN_MAX_S = 1.0, 60.0
_COMPONENTS = ("dovetail-agent", "dovetail-driver", "dovetail-mps", "dovetail-toolkit")
"""The names on pods of the DaemonSets of a stack."""
_HOLDERS_MS = 5_000
"""The least time between two lists of all pods."""


def _wall_ms() -> int:
    return round(time.time() * 1000)


class Rollouts(StackPart):
    """`clock_ms` is epoch time."""

    def __init__(self, shared: SharedByParts, *, clock_ms: Callable[[], int] = _wall_ms) -> None:
        self._client, self._changed, self._clock_ms = shared.client, shared.changed, clock_ms
        self._watches = shared.watches
        self._stack: GPUStack | None = None
        self._due = asyncio.Event()
        self._revisions = Revisions(shared.client, self.wake)
        self._acts = RolloutActs(shared.client, shared.watches, clock_ms)
        self._followed: tuple[SharedReflector[Any], ...] = (
            self._watches.nodes, self._watches.gpu_nodes, self._watches.agent_pods, self._watches.daemon_sets,
        )  # fmt: skip
        self._watches.nodes.subscribe(self.wake, reads=content)
        self._watches.gpu_nodes.subscribe(self.wake, reads=service_state)
        self._watches.agent_pods.subscribe(self.wake)
        self._watches.daemon_sets.subscribe(self.wake)
        self._share = shared.disruptions.join(self.wake)
        self._shown_unread = ""
        self._in_force = "", False
        """The revision that is rendered, and whether nodes go back from it."""
        self._adjusted: tuple[tuple[str, bool], dict[str, str]] | None = None
        """The templates of the DaemonSets by name, and what they were made for."""
        self._pass: RolloutPass | None = None
        self._facts: dict[str, RolloutNode] = {}
        self._holders: tuple[int, dict[str, Holders]] = 0, {}

    async def run(self) -> None:
        """Roll out until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._revisions.watch.run())
            tasks.create_task(self._work())
            await self._revisions.watch.synced.wait()
            # The engine waits for the revisions.
            self._changed()

    def _unread(self) -> str:
        """What the API server answered when something was read without which no node is changed; "" for nothing."""
        return next((one.unread for one in (self._revisions.watch, *self._followed) if one.unread), "")

    async def _work(self) -> None:
        failures = 0
        while True:
            self._due.clear()
            try:
                again_s = await self.step()
                failures = 0
            except KubeError as error:
                failures += 1
                again_s = min(_AGAIN_MAX_S, _AGAIN_S * 2.0 ** min(failures - 1, 6))
                log.warning("rollout: %s; trying again", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await self._due.wait()
            await asyncio.sleep(_SETTLE_S)

    def wake(self, _: object = None) -> None:
        """Something has changed, or time has passed."""
        self._due.set()

    def follow(self, stack: GPUStack | None) -> None:
        """The stack that counts."""
        another = stack is None or self._stack is None or stack.metadata.uid != self._stack.metadata.uid
        if another:
            self._pass, self._adjusted = None, None
        self._revisions.follow(stack, another=another)
        if stack is None or self._stack is None or stack.spec != self._stack.spec:
            self._due.set()
        self._stack = stack

    def effective(self, stack: GPUStack) -> GPUStack:
        """The stack, with the last good spec while nodes go back to it and after. Raises PartNotReady."""
        self._revisions.load(stack)
        present, good = self._revisions.present(stack), self._revisions.good(stack)
        if not self._share.known:
            self._share.hold(present.record.nodes)
        back = present.record.back and good is not None
        self._in_force = present.id, back
        if not back or good is None:
            return stack
        return replace(stack, spec=replace(good.spec, upgrade=stack.spec.upgrade))

    def adjusted(self, documents: tuple[Document, ...]) -> tuple[Document, ...]:
        """The objects, each DaemonSet with a mark in its template by which its pods are recognised."""
        templates: dict[str, str] = {}
        found = tuple(stamped(document, templates) for document in documents)
        if self._adjusted != (self._in_force, templates):
            self._adjusted = self._in_force, templates
            self._due.set()
        return found

    def report(self, status: StackStatus) -> StackStatus:
        """The status with how far the rollout is; as it was written last, before the first pass of this process."""
        stack = self._stack
        if stack is None:
            return status
        rollout = self._shown(stack, self._pass) if self._pass is not None else stack.status.rollout
        measure(stack.metadata.name, status.nodes, rollout)
        return replace(status, rollout=rollout)

    def waits(self) -> str:
        """Why a rollout has ended before its end."""
        if unread := self._unread():
            return f"no node is changed: {unread}"
        found = self._pass.record if self._pass is not None else None
        if found is None or found.phase not in (RolloutPhase.FAILED, RolloutPhase.ROLLED_BACK):
            return ""
        return f"the rollout was stopped: {found.reason}" + ("; nodes have the last good spec" if found.back else "")

    async def release(self, stack: GPUStack) -> str:
        """End the maintenance of nodes that are in it for a rollout, and delete the revisions."""
        await settled(self._watches.gpu_nodes, self._revisions.watch)
        self._stack = None
        self._share.hold(())
        await self._acts.release(stack)
        await self._revisions.release(stack)
        return ""

    async def step(self) -> float | None:
        """One pass. Seconds until the next one that is due without a change, or None. Raises KubeError."""
        stack, now_ms = self._stack, self._clock_ms()
        if stack is None or stack.metadata.deletion_timestamp is not None:
            return None
        if self._unread() != self._shown_unread:
            self._shown_unread = self._unread()
            self._changed()
        if not self._synced():
            # That a kind is not served is announced by nothing.
            return _AGAIN_S if self._unread() else _UNSYNCED_S
        self._revisions.load(stack)
        present, good = self._revisions.present(stack), self._revisions.good(stack)
        if self._adjusted is None or self._adjusted[0] != (present.id, present.record.back and good is not None):
            self._changed()
            return None
        templates = self._adjusted[1]
        live = self._watches.daemon_sets.known
        known = {name: live.get((AGENT_NAMESPACE, name)) for name in templates}
        if any(one is None or one.template != templates[name] for name, one in known.items()):
            return None
        await self._read_holders(stack, present.record, templates, now_ms)
        # From here to `hold` nothing is waited for.
        others = self._share.others
        self._facts = facts(stack, self._objects(templates, others or frozenset()))
        able = good is not None and replace(good.spec, upgrade=stack.spec.upgrade) != stack.spec
        upgrade = stack.spec.upgrade if others is not None else replace(stack.spec.upgrade, paused=True)
        plan = RolloutPlan(upgrade, frozenset(templates), able)
        found = advance(present.record, self._facts, plan, now_ms)
        self._share.hold(found.record.nodes)
        if found.record != present.record or present.id not in self._revisions:
            await self._revisions.write(stack, replace(present, record=found.record))
        shown = self._pass
        self._pass = found
        if shown is None or (shown.record, shown.left, shown.starting) != (found.record, found.left, found.starting):
            self._changed()
        for action in found.actions:
            await self._acts.act(stack, present.id, action)
        if found.record.phase in (RolloutPhase.DONE, RolloutPhase.ROLLED_BACK):
            await self._revisions.forget_others(stack, present)
        return None if found.again_ms is None else max(0.0, (found.again_ms - now_ms) / 1000)

    def _synced(self) -> bool:
        return all(reflector.settled for reflector in (self._revisions.watch, *self._followed))

    def _objects(self, templates: dict[str, str], held: frozenset[str] = frozenset()) -> StackObjects:
        pods: dict[str, list[WatchedPod]] = {}
        for pod in self._watches.agent_pods.known.values():
            if pod.metadata.labels.get(NAME_LABEL) in _COMPONENTS:
                pods.setdefault(pod.spec.node_name, []).append(pod)
        gpu_nodes = {name: one for (_, name), one in self._watches.gpu_nodes.known.items()}
        holders = self._holders[1] if self._holders[0] else None
        return StackObjects(self._watches.nodes.known.values(), gpu_nodes, pods, templates, holders, held)

    def _shown(self, stack: GPUStack, found: RolloutPass) -> RolloutStatus:
        present, good = self._revisions.present(stack), self._revisions.good(stack)
        return rollout_status(stack, found, present.id, good, len(self._facts))

    async def _read_holders(
        self, stack: GPUStack, record: RolloutRecord, templates: dict[str, str], now_ms: int
    ) -> None:
        """Read which nodes are empty, if a change waits for that."""
        drained = any(progress.drained for progress in record.nodes.values())
        if not drained and not any(node.drains for node in facts(stack, self._objects(templates)).values()):
            self._holders = 0, {}
            return
        if now_ms - self._holders[0] < _HOLDERS_MS:
            return
        params = {"fieldSelector": UNFINISHED}
        pods = (await list_all(self._client, PODS, HoldingPod, params=params)).objects.values()
        self._holders = now_ms, holders_of(pods, (AGENT_NAMESPACE,))
