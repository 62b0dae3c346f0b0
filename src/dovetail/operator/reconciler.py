# SPDX-License-Identifier: Apache-2.0
"""The loop of one GPUStack: level-triggered, so that each pass starts from what there is and not from what changed.

A pass: which stack counts; the finalizer; the wanted objects; what differs is applied in order; what is ours and not
wanted any more is pruned; the status. A stack that is being deleted is uninstalled instead.

Rules
- Of several stacks the oldest counts, also while it is being deleted; the others report AnotherStack and wait.
- With contradictions in the spec nothing is applied or pruned: what runs goes on.
- Nothing is pruned in a pass in which an object could not be applied. What a part does not want there is deleted first,
  whatever else is in the way.
- After a failed pass the next one waits longer; a change wakes it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from dovetail import __version__
from dovetail.kube.api.client import APPLY_PATCH, MERGE_PATCH, Attempts, Client
from dovetail.kube.api.errors import Conflict, KubeError, NotFound
from dovetail.kube.api.reflector import Reflector
from dovetail.kube.api.resources import GPU_STACKS
from dovetail.kube.objects.stack import GPUStack, StackCondition, StackStatus
from dovetail.operator import metrics, uninstall
from dovetail.operator.apply import Applier, ApplyProblem, ApplyResult
from dovetail.operator.comparison import FIELD_MANAGER
from dovetail.operator.conditions import ACCEPTED, APPLIED, READY, StackReason, condition, settled
from dovetail.operator.inventory import OwnedObjects
from dovetail.operator.kinds import OWNED
from dovetail.operator.parts import PartNotReady, StackPart
from dovetail.operator.rendering.stack_objects import Desired
from dovetail.operator.status import bounded, components, document

FINALIZER = "dovetail.dev/operator"
_SETTLE_S = 0.2
"""Changes that come together are one pass."""
_APART_S = 1.0
"""Between the beginnings of two passes: while a thousand pods start, the status is written once a second."""
_AGAIN_S, _AGAIN_MAX_S = 1.0, 60.0
_SHOWN = 3
_ATTEMPTS = Attempts(retries=1)


class Workshop(Struct, frozen=True):
    """What all loops share. `stacks`: all GPUStacks. `render` makes the wanted objects of one. `unfit`: why the
    process cannot work with the definitions of our kinds, "" where it can."""

    client: Client
    stacks: Reflector[GPUStack]
    inventory: OwnedObjects
    applier: Applier
    render: Callable[[GPUStack], Desired]
    parts: tuple[StackPart, ...]
    unfit: Callable[[], str] = str


def counting(stacks: Collection[GPUStack]) -> GPUStack | None:
    """The stack that counts: the oldest."""
    never = datetime.max.replace(tzinfo=UTC)
    return min(stacks, key=lambda s: (s.metadata.creation_timestamp or never, s.metadata.name), default=None)


class Reconciler:
    """The loop of the stack of this name."""

    def __init__(self, name: str, shop: Workshop) -> None:
        self._name = name
        self._shop = shop
        self._due = asyncio.Event()
        self._due.set()
        self._written: GPUStack | None = None

    def wake(self) -> None:
        """Something has changed."""
        self._due.set()

    async def run(self) -> None:
        """Reconcile until cancelled, or until the stack is gone. Raises NotLeading."""
        failures = 0
        while True:
            self._due.clear()
            began_s = time.monotonic()
            again_s, result = None, "done"
            try:
                again_s = await self.reconcile()
            except (Conflict, NotFound):
                # The stack has changed since it was read, and the watch brings that.
                again_s, result = _AGAIN_S, "conflict"
            except PartNotReady as error:
                metrics.log.debug("stack %s: %s", self._name, error)
                again_s, result = _AGAIN_S, "waiting"
            except KubeError as error:
                metrics.log.warning("stack %s: %s; trying again", self._name, error)
                again_s, result = _AGAIN_S, "failed"
            metrics.count(metrics.RECONCILES, result)
            metrics.RECONCILE_SECONDS.observe(time.monotonic() - began_s)
            if ("", self._name) not in self._shop.stacks.known:
                return
            failures = failures + 1 if again_s is not None else 0
            if again_s is not None:
                again_s = min(_AGAIN_MAX_S, again_s * 2.0 ** min(failures - 1, 10))
                again_s *= 0.5 + 0.5 * self._shop.client.jitter()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await self._due.wait()
            await asyncio.sleep(max(_SETTLE_S, _APART_S - (time.monotonic() - began_s)))

    async def reconcile(self) -> float | None:
        """One pass. Seconds until the next one that is due without a change, or None. Raises KubeError, NotLeading."""
        stack = self._known()
        if stack is None:
            return None
        first = counting(self._shop.stacks.known.values())
        counts = first is None or first.metadata.name == self._name
        if stack.metadata.deletion_timestamp is not None:
            return await self._uninstall(stack, counts)
        if first is not None and not counts:
            text = f"the stack {first.metadata.name} is older; delete one of the two"
            conditions = [condition(kind, StackReason.ANOTHER_STACK, text) for kind in (ACCEPTED, READY)]
            await self._report(stack, StackStatus(version=__version__), conditions)
            return None
        for part in self._shop.parts:
            part.follow(stack)
        if FINALIZER not in stack.metadata.finalizers:
            await self._set_finalizers(stack, (*stack.metadata.finalizers, FINALIZER))
        return await self._bring(stack)

    async def _bring(self, stack: GPUStack) -> float | None:
        shop, effective = self._shop, stack
        await self._delete_unwanted(stack)
        if text := shop.unfit():
            conditions = [condition(kind, StackReason.NEWER_DEFINITIONS, text) for kind in (APPLIED, READY)]
            await self._report(stack, self._status(stack), conditions)
            return None
        for part in shop.parts:
            effective = part.effective(effective)
        wanted = shop.render(effective)
        if wanted.problems:
            text = "; ".join(str(one) for one in wanted.problems[:_SHOWN])
            accepted = condition(ACCEPTED, StackReason.CONTRADICTION, text)
            old = [one for one in stack.status.conditions if one.type == APPLIED]
            ready = condition(READY, StackReason.CONTRADICTION, "the spec contradicts itself; what runs goes on")
            await self._report(stack, self._status(stack), [accepted, *old, ready])
            return None
        documents = wanted.objects
        for part in shop.parts:
            documents = part.adjusted(documents)
        result = await shop.applier.apply(documents)
        if not result.problems and result.again_s is None:
            result.problems += await self._prune(stack, documents)
        status = self._status(stack)
        applied = _applied(result)
        accepted = condition(ACCEPTED, StackReason.VALID, "; ".join(map(str, wanted.unmet)))
        conditions = [accepted, applied, self._ready(applied, status)]
        await self._report(stack, status, conditions)
        return result.again_s if result.again_s is not None else _AGAIN_S if result.problems else None

    async def _delete_unwanted(self, stack: GPUStack) -> None:
        """Delete what parts do not want to be there now. Where that is refused, the next pass tries it again."""
        for ref in (one for part in self._shop.parts for one in part.unwanted()):
            live = self._shop.inventory.get(ref)
            if live is not None and live.owned_by(stack.metadata.uid):
                problem = await self._shop.applier.remove(ref, live)
                if problem is not None:
                    metrics.log.warning("stack %s: %s", self._name, problem)

    async def _prune(self, stack: GPUStack, documents: Iterable[dict[str, object]]) -> list[ApplyProblem]:
        """Delete what was made for this stack and is not wanted any more. Returns what the server refuses."""
        kept, problems = set(), []
        for one in documents:
            meta = one["metadata"]
            assert isinstance(meta, dict)
            kept.add((one["kind"], meta.get("namespace", ""), meta["name"]))
        owned = self._shop.inventory.owned(stack.metadata.uid)
        for ref, live in sorted(owned, key=lambda one: -OWNED.index(one[0].resource)):
            if (ref.resource.kind, ref.namespace, ref.name) not in kept:
                problem = await self._shop.applier.remove(ref, live)
                if problem is not None:
                    problems.append(problem)
        return problems

    def _status(self, stack: GPUStack) -> StackStatus:
        status = StackStatus(version=__version__, components=components(self._shop.inventory.owned(stack.metadata.uid)))
        for part in self._shop.parts:
            status = part.report(status)
        return status

    def _ready(self, applied: StackCondition, status: StackStatus) -> StackCondition:
        if applied.status != "True":
            return condition(READY, StackReason.NOT_APPLIED, applied.message)
        behind = [f"{one.name}: {one.message}" for one in status.components if one.message]
        if behind:
            return condition(READY, StackReason.COMPONENTS_NOT_READY, _shown(behind))
        waits = [text for part in self._shop.parts if (text := part.waits())]
        return condition(READY, StackReason.NODES_NOT_READY if waits else StackReason.READY, _shown(waits))

    async def _uninstall(self, stack: GPUStack, counts: bool) -> float | None:
        if FINALIZER not in stack.metadata.finalizers:
            return None
        waits = await uninstall.step(
            stack, self._shop.inventory, self._shop.applier, self._shop.parts if counts else ()
        )
        if not waits:
            rest = tuple(one for one in stack.metadata.finalizers if one != FINALIZER)
            await self._set_finalizers(stack, rest)
            metrics.log.info("stack %s is uninstalled", self._name)
            return None
        conditions = [condition(kind, StackReason.UNINSTALLING, waits) for kind in (APPLIED, READY)]
        await self._report(stack, self._status(stack), conditions)
        return _AGAIN_S

    def _known(self) -> GPUStack | None:
        """The newest known state of the stack: from the watch, or as our last write left it."""
        seen, written = self._shop.stacks.known.get(("", self._name)), self._written
        if seen is None or written is None or written.metadata.uid != seen.metadata.uid:
            self._written = None
            return seen
        newer = int(written.metadata.resource_version or 0) > int(seen.metadata.resource_version or 0)
        return written if newer else seen

    async def _report(self, stack: GPUStack, status: StackStatus, conditions: Iterable[StackCondition]) -> None:
        """Write the status with these conditions and those of parts, if it is not what is written already."""
        stack = self._known() or stack
        generation, old = stack.metadata.generation, stack.status
        kept = settled(
            old.conditions, [*conditions, *status.conditions], generation, datetime.now(UTC).replace(microsecond=0)
        )
        new = bounded(replace(status, observed_generation=generation, conditions=kept))
        self._measure(new)
        if document(new) == document(old):
            return
        body = {
            "apiVersion": GPU_STACKS.api_version, "kind": GPU_STACKS.kind,
            "metadata": {"name": self._name, "uid": stack.metadata.uid}, "status": document(new),
        }  # fmt: skip
        params: dict[str, str | int] = {"fieldManager": FIELD_MANAGER, "force": "true"}
        await self._write("status", body, params, APPLY_PATCH)

    async def _set_finalizers(self, stack: GPUStack, finalizers: tuple[str, ...]) -> None:
        # Not by apply, which would make a stack that was deleted meanwhile again.
        metadata = {"finalizers": list(finalizers), "resourceVersion": stack.metadata.resource_version}
        await self._write("", {"metadata": metadata}, {"fieldManager": FIELD_MANAGER}, MERGE_PATCH)

    async def _write(self, subresource: str, body: object, params: dict[str, str | int], content_type: str) -> None:
        path = GPU_STACKS.path(None, self._name, subresource or None)
        self._written = await self._shop.client.request(
            "PATCH", path, body, decode=GPUStack, params=params, content_type=content_type, attempts=_ATTEMPTS
        )
        metrics.count(metrics.WRITES, GPU_STACKS.kind, subresource or "finalizers", "written")

    def _measure(self, status: StackStatus) -> None:
        for one in status.conditions:
            for value in ("True", "False"):
                metrics.CONDITION.labels(self._name, one.type, value).set(one.status == value)
        for component in status.components:
            metrics.COMPONENT_DESIRED.labels(self._name, component.name).set(component.desired)
            metrics.COMPONENT_READY.labels(self._name, component.name).set(component.ready)


def _applied(result: ApplyResult) -> StackCondition:
    if result.problems:
        return condition(APPLIED, result.problems[0].reason, _shown([str(one) for one in result.problems]))
    altered = f"something alters {_shown(result.altered)}" if result.altered else ""
    return condition(APPLIED, StackReason.APPLIED, altered)


def _shown(texts: list[str]) -> str:
    more = f"; {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more
