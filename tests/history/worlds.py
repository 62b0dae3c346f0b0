# SPDX-License-Identifier: Apache-2.0
"""Random clusters that change over time, and what is true of them at each moment."""

from __future__ import annotations

from collections import Counter
from random import Random

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.devices.mig.geometry import Geometry
from dovetail.core.devices.mig.products import of_product
from dovetail.core.devices.mig.static import layout_from_counts
from dovetail.core.model import CPU, GPU, MEMORY, PODS, SHARED_GPU, Node, Pod, Request
from dovetail.history.records import GpuSpan

MIG = "nvidia.com/mig-1g.5gb"
_ROOM = ((CPU, 64000), (MEMORY, 2**40), (PODS, 110))


def a100() -> Geometry:
    geometry = of_product("NVIDIA-A100-SXM4-40GB")
    assert geometry is not None
    return geometry


def whole_node(name: str, gpus: int, labels: tuple[tuple[str, str], ...] = ()) -> Node:
    return Node(name, tuple(sorted((*_ROOM, (GPU, gpus)))), labels)


def shared_node(name: str) -> Node:
    """Two GPUs of two replicas each."""
    amounts = tuple(sorted((*_ROOM, (SHARED_GPU, 4))))
    return Node(name, amounts, gpu_memory_mib=40_000, sharing=Sharing(SHARED_GPU, 2, 2))


def mig_node(name: str) -> Node:
    cards = layout_from_counts(a100(), {"1g.5gb": 14}, 2)
    assert cards is not None
    return Node(name, tuple(sorted((*_ROOM, (MIG, 14)))), mig=cards, geometry=a100())


class World:
    """`nodes` and `pods` are what there is. Times are integers; each `tick` is one."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.now_ms = 0
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.milli: dict[str, int] = {}
        """What each pod holds in all."""
        self._made = 0

    def tick(self) -> list[ev.Event]:
        self.now_ms += 1
        events: list[ev.Event] = []
        for _ in range(self._chance.randrange(3)):
            events += self._chance.choice([self._node, self._bind, self._bind, self._end, self._end, self._change])()
        return events

    def listed(self) -> list[ev.Event]:
        """All that there is, as a process that starts reads it."""
        pods = list(self.pods.values())
        self._chance.shuffle(pods)
        return [*map(ev.NodeChanged, self.nodes.values()), *map(ev.PodChanged, pods)]

    def _node(self) -> list[ev.Event]:
        name = self._chance.choice("abcd")
        if name in self.nodes:
            if self._chance.random() < 0.6:
                return []
            del self.nodes[name]
            return [*self._leave(name), ev.NodeRemoved(name)]
        made = {"a": lambda: whole_node("a", 4), "b": lambda: shared_node("b"), "c": lambda: mig_node("c")}
        self.nodes[name] = made.get(name, lambda: whole_node("d", 2))()
        return [ev.NodeChanged(self.nodes[name])]

    def _leave(self, node: str) -> list[ev.Event]:
        """The pods of a node end with it."""
        found: list[ev.Event] = []
        for uid in [uid for uid, pod in self.pods.items() if pod.node == node]:
            del self.pods[uid]
            found.append(ev.PodRemoved(uid, self.now_ms))
        return found

    def _change(self) -> list[ev.Event]:
        """A node is quarantined, or is not any more, or gets another label."""
        if not self.nodes:
            return []
        name = self._chance.choice(sorted(self.nodes))
        node = self.nodes[name]
        if self._chance.random() < 0.5:
            changed = replace(node, quarantine_ms=0 if node.quarantine_ms else self.now_ms)
        else:
            changed = replace(node, labels=(("node.kubernetes.io/instance-type", f"type-{self.now_ms}"),))
        self.nodes[name] = changed
        return [ev.NodeChanged(changed)]

    def _bind(self) -> list[ev.Event]:
        name = self._chance.choice("abcd")
        if name not in self.nodes:
            return []
        own = sum(self.milli[uid] for uid, pod in self.pods.items() if pod.node == name)
        request, milli, room = {
            "a": (Request(resources=((GPU, 1),)), 1000, 4000),
            "b": (Request(resources=((SHARED_GPU, 1),)), 500, 2000),
            "c": (Request(resources=((MIG, 1),)), 143, 14 * 143),
            "d": (Request(gpu_milli=500), 500, 2000),
        }[name]
        if name == "a" and own <= 2000 and self._chance.random() < 0.5:
            request, milli = Request(resources=((GPU, 2),)), 2000
        if own + milli > room:
            return []
        self._made += 1
        uid = f"p{self._made}"
        pod = Pod(
            uid, "team", uid, request, (("app", "x"),), created_ms=self.now_ms, node=name, bound_ms=self.now_ms,
            queue="default",
        )  # fmt: skip
        self.pods[uid], self.milli[uid] = pod, milli
        return [ev.PodChanged(pod)]

    def _end(self) -> list[ev.Event]:
        if not self.pods:
            return []
        uid = self._chance.choice(sorted(self.pods))
        del self.pods[uid]
        return [ev.PodRemoved(uid, self.now_ms)]

    def spans(self) -> Counter[tuple[str, str, str]]:
        """The GPUs by node, health and type of instance, as they are now."""
        found: Counter[tuple[str, str, str]] = Counter()
        for name, node in self.nodes.items():
            health = "unhealthy" if node.quarantine_ms else "healthy"
            labels = dict(node.labels)
            found[name, health, labels.get("node.kubernetes.io/instance-type", "")] = {"a": 4}.get(name, 2)
        return found

    def held(self) -> dict[str, int]:
        return {uid: self.milli[uid] for uid in self.pods}


def spans_of(spans: list[GpuSpan]) -> Counter[tuple[str, str, str]]:
    return Counter((span.node, span.health, span.instance_type) for span in spans)
