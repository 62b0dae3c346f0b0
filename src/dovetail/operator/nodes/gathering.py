# SPDX-License-Identifier: Apache-2.0
"""The objects that the walk follows, and the facts of one node among them.

Rules
- Watched are Nodes, GPUNodes, RuntimeClasses, and the pods and DaemonSets in Dovetail's namespaces (`watched`). Pods of
  users are not watched.
- Only pods and DaemonSets in Dovetail's own namespaces count: a label is nothing that tenants could not write, too.
- A node is walked if its labels make it a GPU node, if it offers GPUs, has a GPUNode, or has the start-up taint;
  dovetail.dev/agent=false takes it out.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from msgspec.structs import replace

from dovetail.kube.api.reflector import Change
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.stack import DRA, NO_ALLOCATION, GPUStack
from dovetail.operator.nodes.evidence import Trouble, is_ready, newest, trouble_of, wants_events, wants_log
from dovetail.operator.nodes.facts import (
    NodeComponent,
    WalkFacts,
    agent_of,
    gpu_signs,
    gpus_of,
    has_startup_taint,
    is_of_another,
    kubelet_of,
)
from dovetail.operator.nodes.outlines import NODE_OF_VALIDATION
from dovetail.operator.nodes.reading import NodeReads
from dovetail.operator.nodes.validation import DEVICE_CLASS, LABEL
from dovetail.operator.pools import AGENT_LABEL, is_gpu_node, pool_of, pools_of
from dovetail.operator.rendering.stack_objects import AGENT_NAMESPACE
from dovetail.operator.watched.nodes import WatchedGPUNode, WatchedNode, content
from dovetail.operator.watched.outline import Outline
from dovetail.operator.watched.pods import NAME_LABEL, WatchedOwner, WatchedPod, kept_pod, node_of
from dovetail.operator.watched.watches import SharedWatches, settled

PRODUCT = "nvidia.com/gpu.product"
_AGENT, _DRIVER, _TOOLKIT = "dovetail-agent", "dovetail-driver", "dovetail-toolkit"
_COMPONENTS = (_AGENT, _DRIVER, _TOOLKIT)
_REFUSED_MS = 1_200_000
"""How long an event of a refused pod counts: the controller's pauses between attempts are up to 15 minutes."""


class NodeObjects:
    """Subscribes to the watches. `changed` is called with the nodes that a change is about, None for all."""

    def __init__(
        self, watches: SharedWatches, changed: Callable[[str | None], None], clock_ms: Callable[[], int]
    ) -> None:
        self._changed, self._clock_ms = changed, clock_ms
        self.watches = watches
        self.nodes, self.gpu_nodes, self.classes = watches.nodes, watches.gpu_nodes, watches.runtime_classes
        self._sets = watches.daemon_sets
        self._pods: dict[str, dict[str, WatchedPod]] = {}
        """By node and uid the pods of components."""
        self.validations: dict[str, dict[str, WatchedPod]] = {}
        """By node and uid the validation pods."""
        self._heard: dict[str, tuple[datetime | None, int]] = {}
        """By GPUNode the time that its agent has written, and when this process saw another one."""

        self.nodes.subscribe(self._nodes_changed, reads=content)
        self.gpu_nodes.subscribe(self._agents_wrote)
        watches.agent_pods.subscribe(self._component_pods)
        watches.system_pods.subscribe(self._validation_pods)
        self._sets.subscribe(self._sets_changed)
        self.classes.subscribe(self._classes_changed)

    async def synced(self) -> None:
        """Wait until all that is followed has been listed once, or is not served."""
        watches = self.watches
        await settled(
            self.nodes, self.gpu_nodes, watches.agent_pods, watches.system_pods, self._sets, self.classes
        )  # fmt: skip

    def node(self, name: str) -> WatchedNode | None:
        return self.nodes.known.get(("", name))

    def gpu_node(self, name: str) -> WatchedGPUNode | None:
        return self.gpu_nodes.known.get(("", name))

    def names(self) -> list[str]:
        """All nodes, and those that are gone and still have a validation pod."""
        known = {name for _, name in self.nodes.known}
        return sorted(known | self.validations.keys())

    def walked(self, node: WatchedNode) -> bool:
        """Whether the node is one to walk."""
        labels = node.metadata.labels
        if labels.get(AGENT_LABEL) == "false":
            return False
        gpu_node = self.gpu_node(node.metadata.name)
        own = gpu_node is not None and not is_of_another(gpu_node, node)
        return is_gpu_node(labels) or own or any(gpus_of(node).values()) or has_startup_taint(node.spec.taints)

    async def facts(self, node: WatchedNode, stack: GPUStack, reads: NodeReads, now_ms: int) -> WalkFacts:
        """The facts of one node, but for its validation. Raises ApiError."""
        name, spec, labels = node.metadata.name, stack.spec, node.metadata.labels
        gpu_node = self.gpu_node(name)
        own = gpu_node if gpu_node is not None and not is_of_another(gpu_node, node) else None
        pool = pool_of(pools_of(spec.agent), labels)
        offered = gpus_of(node)
        agent_name = _AGENT if pool is None or pool.name == "default" else f"{_AGENT}-{pool.name}"
        slices = None
        if pool is not None and (
            pool.allocation == DRA or (pool.allocation == NO_ALLOCATION and not any(offered.values()))
        ):
            slices = await reads.has_slices(name, DEVICE_CLASS)
        return WalkFacts(
            name=name,
            spec=spec,
            pool=pool,
            gpu_signs=gpu_signs(node, is_gpu_node(labels), own, offered),
            kubelet=kubelet_of(node),
            cordoned=node.spec.unschedulable,
            maintenance=own is not None and own.spec.maintenance is not None,
            tainted=has_startup_taint(node.spec.taints),
            allocatable=offered,
            labelled=PRODUCT in labels,
            runtime_class=("", spec.runtime.class_name) in self.classes.known if self.classes.served else None,
            driver=await self._component(name, _DRIVER, _DRIVER, reads, now_ms),
            toolkit=await self._component(name, _TOOLKIT, _TOOLKIT, reads, now_ms),
            agent_pod=await self._component(name, _AGENT, agent_name, reads, now_ms),
            agent=agent_of(own, node, now_ms, self._heard.get(name, (None, 0))[1]),
            slices=slices,
            before=own.status.readiness if own is not None else None,
        )

    async def _component(self, node: str, label: str, daemon_set: str, reads: NodeReads, now_ms: int) -> NodeComponent:
        pods = [pod for pod in self._pods.get(node, {}).values() if pod.metadata.labels.get(NAME_LABEL) == label]
        pod = newest(pods)
        key = AGENT_NAMESPACE, daemon_set
        component = NodeComponent(name=daemon_set, namespace=AGENT_NAMESPACE, daemon_set=key in self._sets.known)
        if pod is None or pod.metadata.deletion_timestamp is not None:
            if not component.daemon_set:
                return component
            return replace(component, refused=await self._refused(key, reads, now_ms))
        if is_ready(pod):
            started = [one.state.running.started_at for one in pod.status.container_statuses if one.state.running]
            image = pod.spec.containers[0].image if pod.spec.containers else ""
            return replace(component, ready=True, started_ms=max(map(epoch_ms, started), default=0), image=image)
        what = label.removeprefix("dovetail-")
        return replace(component, trouble=await self.trouble(pod, what, reads))

    async def trouble(self, pod: WatchedPod, what: str, reads: NodeReads) -> Trouble | None:
        """Why a pod is not ready, with its events or log where only these show it. Raises ApiError."""
        meta = pod.metadata
        events = await reads.events(meta.namespace, "Pod", meta.name, meta.uid) if wants_events(pod) else ()
        failing = wants_log(pod)
        log = await reads.log_line(pod, failing.name, failing.restart_count) if failing is not None else ""
        return trouble_of(pod, what, events, log)

    async def _refused(self, daemon_set: tuple[str, str], reads: NodeReads, now_ms: int) -> str:
        events = await reads.events(daemon_set[0], "DaemonSet", daemon_set[1])
        latest = [(one.last_ms, one.note) for one in events if one.reason == "FailedCreate"]
        at_ms, message = max(latest, default=(0, ""))
        return message if now_ms - at_ms < _REFUSED_MS else ""

    def _nodes_changed(self, changes: list[Change[WatchedNode]]) -> None:
        for change in changes:
            self._changed(change.object.metadata.name)

    def _agents_wrote(self, changes: list[Change[WatchedGPUNode]]) -> None:
        for change in changes:
            name, written = change.object.metadata.name, change.object.status.observed_time
            if change.kind == "deleted":
                self._heard.pop(name, None)
            elif name not in self._heard:
                self._heard[name] = (written, 0)
            elif self._heard[name][0] != written:
                self._heard[name] = (written, self._clock_ms())
            self._changed(name)

    def _sets_changed(self, changes: list[Change[WatchedOwner]]) -> None:
        # The status of a DaemonSet changes with each of its pods, which are followed themselves.
        ours = [one for one in changes if one.object.metadata.namespace == AGENT_NAMESPACE]
        if any(one.kind != "modified" for one in ours):
            self._changed(None)

    def _classes_changed(self, changes: list[Change[Outline]]) -> None:
        if any(one.kind != "modified" for one in changes):
            self._changed(None)

    def _component_pods(self, changes: list[Change[WatchedPod]]) -> None:
        for change in changes:
            if change.object.metadata.labels.get(NAME_LABEL) in _COMPONENTS:
                self._put(self._pods, change, node_of(change.object))

    def _validation_pods(self, changes: list[Change[WatchedPod]]) -> None:
        for change in changes:
            if LABEL in change.object.metadata.labels:
                self._put(self.validations, change, change.object.metadata.annotations.get(NODE_OF_VALIDATION, ""))

    def _put(self, pods: dict[str, dict[str, WatchedPod]], change: Change[WatchedPod], node: str) -> None:
        if not node:
            return
        uid = change.object.metadata.uid
        if change.kind == "deleted":
            pods.get(node, {}).pop(uid, None)
            if not pods.get(node):
                pods.pop(node, None)
        else:
            pods.setdefault(node, {})[uid] = kept_pod(change.object)
        self._changed(node)
