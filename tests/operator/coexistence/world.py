# SPDX-License-Identifier: Apache-2.0
"""A small cluster for takeovers: nodes, DaemonSets of both sides, and what controllers and kubelets do with them, one
step at a time and in any order."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec

from dovetail.kube.objects.stack import NodePool, PoolMig, StackSpec
from dovetail.operator.budgets import FleetNode
from dovetail.operator.coexistence.found_components import AgentOnNode, ForeignDaemon
from dovetail.operator.coexistence.states import NodePatch, SharedNode
from dovetail.operator.coexistence.table import OPERANDS, AgentFunction
from dovetail.operator.found import ALLOCATION_LABEL, EXPORTER_LABEL

POOL = NodePool(mig=PoolMig(repartition=True))
ALLOCATION, EXPORTER = AgentFunction.ALLOCATION, AgentFunction.EXPORTER


@dataclass
class WorldPod:
    """`functions` None: of the other side's DaemonSet `daemon`."""

    node: str
    daemon: str = ""
    functions: frozenset[AgentFunction] | None = None
    ready: bool = False
    ending: bool = False


@dataclass
class World:
    """`apart`: the agent's required anti-affinity to rivals is enforced, as kube-scheduler does. `broken`: nodes where
    the agent's pods never get ready."""

    daemons: list[ForeignDaemon]
    labels: dict[str, dict[str, str]]
    annotations: dict[str, dict[str, str]] = field(default_factory=dict)
    pods: list[WorldPod] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    apart: bool = False
    now_s: int = 1_000
    versions: dict[str, int] = field(default_factory=dict)
    fleet: dict[str, FleetNode] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)

    def by_name(self, name: str) -> ForeignDaemon:
        return next(one for one in self.daemons if one.name == name)

    def on(self, node: str) -> list[WorldPod]:
        return [one for one in self.pods if one.node == node]

    def runs(self, node: str, function: AgentFunction) -> tuple[bool, bool]:
        """Whether the other side and whether ours does it on the node."""
        pods = self.on(node)
        theirs = any(one.functions is None and self.by_name(one.daemon).has(function) for one in pods)
        return theirs, any(one.functions is not None and function in one.functions for one in pods)

    # What the operator sees and writes.

    def seen(self) -> list[SharedNode]:
        found = []
        for name, labels in self.labels.items():
            pods = self.on(name)
            foreign = {
                each.name for one in pods if one.functions is None for each in self.by_name(one.daemon).components
            }
            does = {each for one in pods for each in one.functions or ()}
            ready = {each for one in pods if one.ready and not one.ending for each in one.functions or ()}
            agent = AgentOnNode(frozenset(does), frozenset(ready))
            annotations = dict(self.annotations.get(name, {}))
            fleet = self.fleet.get(name, FleetNode(name))
            held = name in self.held
            found.append(SharedNode(name, dict(labels), annotations, POOL, frozenset(foreign), agent, fleet, held=held))
        return found

    def write(self, patch: NodePatch, version: int) -> None:
        """Nothing if the node has changed since it was read."""
        if version != self.versions.get(patch.node, 0):
            return
        annotations = self.annotations.setdefault(patch.node, {})
        for target, changes in ((self.labels[patch.node], patch.labels), (annotations, patch.annotations)):
            for key, value in changes.items():
                if value is None:
                    target.pop(key, None)
                else:
                    target[key] = value
        self.touched(patch.node)

    def touched(self, node: str) -> None:
        self.versions[node] = self.versions.get(node, 0) + 1

    # What others do: one step each. They return whether something changed.

    def daemon_sets(self, node: str) -> bool:
        """The controller of DaemonSets, of both sides, on one node."""
        changed = False
        pods, labels = self.on(node), self.labels[node]
        for daemon in self.daemons:
            wanted = all(labels.get(k) == v for k, v in daemon.node_selector) and daemon.selects(labels, node)
            mine = [one for one in pods if one.daemon == daemon.name]
            changed |= self._kept(mine, wanted)
            if wanted and not mine and not (self.apart and daemon.has(ALLOCATION) and self.runs(node, ALLOCATION)[1]):
                self.pods.append(WorldPod(node, daemon.name))
                changed = True
        does = self._agent_does(labels)
        mine = [one for one in pods if one.functions is not None]
        changed |= self._kept(mine, all(one.functions == does for one in mine))
        if not mine and not (self.apart and ALLOCATION in does and self.runs(node, ALLOCATION)[0]):
            self.pods.append(WorldPod(node, functions=does))
            changed = True
        return changed

    def _agent_does(self, labels: dict[str, str]) -> frozenset[AgentFunction]:
        """As the manifests have it: where the other side is in the cluster the label has to permit it."""
        does = {AgentFunction.LABELS, AgentFunction.MIG}
        for function, label in ((ALLOCATION, ALLOCATION_LABEL), (EXPORTER, EXPORTER_LABEL)):
            if labels.get(label) == "dovetail" or not any(one.has(function) for one in self.daemons):
                does.add(function)
        return frozenset(does)

    @staticmethod
    def _kept(pods: list[WorldPod], wanted: bool) -> bool:
        ending = [one for one in pods if not wanted and not one.ending]
        for one in ending:
            one.ending = True
        return bool(ending)

    def kubelet(self, node: str) -> bool:
        """Pods that end are gone, the others get ready."""
        changed = False
        for one in self.on(node):
            if one.ending:
                self.pods.remove(one)
                changed = True
            elif not one.ready and (one.functions is None or node not in self.broken):
                one.ready = changed = True
        return changed

    def gpu_operator(self, node: str) -> bool:
        """It adds its switches where they are missing."""
        labels = self.labels[node]
        if labels.get(OPERANDS) == "false":
            return False
        keys = {key for daemon in self.daemons for key, _ in daemon.node_selector if key not in labels}
        for key in keys:
            labels[key] = "true"
        if keys:
            self.touched(node)
        return bool(keys)

    def reset(self, node: str) -> None:
        """The GPU Operator found no GPU for a moment and removed its switches; the next look adds them again."""
        for key in [key for key in self.labels[node] if key.startswith("nvidia.com/gpu.deploy.")]:
            del self.labels[node][key]
        self.touched(node)

    def pause(self, node: str, begin: bool) -> None:
        """NVIDIA's MIG manager works on the node, or has ended."""
        before, after = ("true", "paused-for-mig-change") if begin else ("paused-for-mig-change", "true")
        for key, value in self.labels[node].items():
            if key.startswith("nvidia.com/gpu.deploy.") and value == before:
                self.labels[node][key] = after
        self.touched(node)

    def others(self, random: Random) -> bool:
        """One step of everybody but the operator, on a node."""
        node = random.choice(sorted(self.labels))
        return random.choice((self.daemon_sets, self.kubelet, self.gpu_operator))(node)

    def settle(self) -> None:
        """Everybody but the operator until nothing changes."""
        steps = (self.gpu_operator, self.daemon_sets, self.kubelet)
        while sum(step(node) for node in sorted(self.labels) for step in steps):
            pass


def spec(*take_over: str, **upgrade: object) -> StackSpec:
    """A spec that takes these components over."""
    return msgspec.convert({"takeOver": list(take_over), "upgrade": upgrade}, StackSpec)
