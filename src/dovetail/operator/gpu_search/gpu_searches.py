# SPDX-License-Identifier: Apache-2.0
"""Searches nodes for GPUs: makes the pods, writes their results to the nodes, and removes the pods.

Rules
- Level-triggered: each pass looks at all nodes and pods of the search as they are known now. What is so already is not
  written, so that nodes that were searched cost nothing.
- At most `_AT_ONCE` pods run at a time. A search that fails is repeated after growing pauses.
- The pods run the image of the agents, which nodes with GPUs need next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from dovetail.kube.api.client import MERGE_PATCH
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.api.reflector import Change
from dovetail.kube.api.resources import NODES
from dovetail.kube.objects.stack import GPUStack
from dovetail.operator.gpu_search.search_pod import (
    SEARCH_LABEL,
    gpus_found,
    is_searched,
    removal_patch,
    result_patch,
    search_pod,
)
from dovetail.operator.nodes.writer import MANAGER, WalkWriter
from dovetail.operator.parts import SharedByParts, StackPart
from dovetail.operator.rendering.stack_objects import Document
from dovetail.operator.watched.nodes import WatchedNode, content
from dovetail.operator.watched.pods import WatchedPod
from dovetail.operator.watched.watches import settled

log = logging.getLogger(__name__)

_AT_ONCE = 10
_SETTLE_S = 0.3
_AGAIN_S = 5.0
_PAUSE_S, _PAUSE_MAX_S = 600.0, 86_400.0


class GpuSearches(StackPart):
    """`clock_s` is a monotonic clock."""

    def __init__(self, shared: SharedByParts, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock_s = shared.client, clock_s
        self._writer = WalkWriter(shared.client)
        self._stack: GPUStack | None = None
        self._image = ""
        self._woken = asyncio.Event()
        self._nodes, self._all_pods = shared.watches.nodes, shared.watches.system_pods
        self._nodes.subscribe(self._changed, reads=content)
        self._all_pods.subscribe(self._changed)
        self._failures: dict[str, tuple[int, float]] = {}
        """By node how often its search has failed, and when the next one may begin."""
        self._ended: dict[str, str] = {}
        """By node the boot whose result was written: the watch may show that late."""

    def follow(self, stack: GPUStack | None) -> None:
        self._stack = stack
        self._woken.set()

    def adjusted(self, documents: tuple[Document, ...]) -> tuple[Document, ...]:
        """The objects as they are; the image of the agents is that of the search."""
        sets = (one for one in documents if one["kind"] == "DaemonSet" and _app(one) == "dovetail-agent")
        image = next((one["spec"]["template"]["spec"]["containers"][0]["image"] for one in sets), "")
        if image != self._image:
            self._image = image
            self._woken.set()
        return documents

    async def run(self) -> None:
        """Search until cancelled."""
        await settled(self._nodes, self._all_pods)
        while True:
            await asyncio.sleep(_SETTLE_S)
            self._woken.clear()
            wait_s: float | None = None
            try:
                await self.step()
                pauses = [at_s - self._clock_s() for _, at_s in self._failures.values()]
                wait_s = min((one for one in pauses if one > 0), default=None)
            except KubeError as error:
                log.warning("search for GPUs: %s; trying again", error)
                wait_s = _AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()

    async def release(self, stack: GPUStack) -> str:
        """Remove the pods, and the results from the nodes."""
        await settled(self._nodes, self._all_pods)
        self._stack = None
        self._ended.clear()
        for pod in self._pods():
            if pod.metadata.deletion_timestamp is None:
                await self._writer.remove(pod)
        for node in list(self._nodes.known.values()):
            patch = removal_patch(node)
            if patch is not None:
                await self._patch(node, patch)
        return ""

    async def step(self) -> None:
        """Do all that is due now. Raises ApiError."""
        stack, now_s = self._stack, self._clock_s()
        if stack is None:
            return
        wanted = stack.spec.agent.enabled and stack.spec.agent.find_gpus and bool(self._image)
        due = {node.metadata.name: node for node in self._nodes.known.values() if wanted and self._is_due(node)}
        running = 0
        for pod in self._pods():
            node = due.pop(pod.spec.node_name, None)
            if pod.metadata.deletion_timestamp is not None:
                continue
            found = gpus_found(pod)
            if node is not None and found is None:
                running += 1
                continue
            if node is not None and found is not None:
                await self._end(node, pod, found, now_s)
            await self._writer.remove(pod)
        for name in sorted(due):
            if running >= _AT_ONCE:
                break
            if now_s >= self._failures.get(name, (0, 0.0))[1]:
                running += 1
                await self._writer.validation(search_pod(stack, name, self._image))

    def _is_due(self, node: WatchedNode) -> bool:
        return is_searched(node) and self._ended.get(node.metadata.name) != node.status.node_info.boot_id

    async def _end(self, node: WatchedNode, pod: WatchedPod, found: int, now_s: float) -> None:
        name = node.metadata.name
        if found >= 0:
            await self._patch(node, result_patch(found, node.status.node_info.boot_id))
            self._ended[name] = node.status.node_info.boot_id
            self._failures.pop(name, None)
            log.info("node %s: %d GPUs on the PCI bus", name, found)
            return
        count = self._failures.get(name, (0, 0.0))[0] + 1
        pause_s = min(_PAUSE_MAX_S, _PAUSE_S * 2.0 ** (count - 1))
        self._failures[name] = count, now_s + pause_s
        why = pod.status.message or pod.status.reason or "no number in its report"
        log.warning("node %s: the search for GPUs has failed: %s; next attempt in %d s", name, why, pause_s)

    async def _patch(self, node: WatchedNode, patch: Any) -> None:
        path, params = NODES.path(name=node.metadata.name), {"fieldManager": MANAGER}
        with contextlib.suppress(NotFound):
            await self._client.request("PATCH", path, patch, params=params, content_type=MERGE_PATCH)

    def _pods(self) -> list[WatchedPod]:
        """Those of the search."""
        return [pod for pod in self._all_pods.known.values() if SEARCH_LABEL in pod.metadata.labels]

    def _changed(self, changes: list[Change[Any]]) -> None:
        self._woken.set()


def _app(document: Document) -> object:
    labels: dict[str, object] = document["spec"]["template"]["metadata"].get("labels", {})
    return labels.get("app.kubernetes.io/name")
