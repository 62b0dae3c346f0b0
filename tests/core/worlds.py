# SPDX-License-Identifier: Apache-2.0
"""Small random clusters on which every rule has something to refuse, and their events."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TypeVar

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.devices.gpu_sharing import Isolation, Sharing
from dovetail.core.model import (
    CPU,
    GPU,
    MEMORY,
    PODS,
    SHARED_GPU,
    Effect,
    HostPort,
    LabelSelector,
    Namespace,
    Node,
    NodeTerm,
    Operator,
    PeerTerm,
    Pod,
    Problem,
    Request,
    Requirement,
    Spread,
    StorageClass,
    Taint,
    Toleration,
    Volume,
    VolumeClaim,
)
from tests.core.oracle import World

HOST, RACK, ZONE, SIZE = "kubernetes.io/hostname", "dovetail.dev/rack", "topology.kubernetes.io/zone", "size"
T = TypeVar("T")


def reported(world: World, *pending: Pod) -> Iterator[ev.Event]:
    yield from (ev.NamespaceChanged(namespace) for namespace in world.namespaces)
    yield from (ev.StorageClassChanged(storage_class) for storage_class in world.classes)
    yield from (ev.VolumeChanged(volume) for volume in world.volumes)
    yield from (ev.VolumeClaimChanged(claim) for claim in world.claims)
    yield from (ev.NodeChanged(node) for node in world.nodes)
    yield from (ev.PodChanged(pod) for pod in (*world.pods, *world.nominated, *pending))


class Dice:
    """A random world and a pod to place in it, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def world(self) -> World:
        names = [f"n{i}" for i in range(self._random.randint(1, 6))]
        world = World(
            nodes=[self._node(name) for name in names],
            namespaces=[Namespace("one", (("team", "x"),)), Namespace("two", (("team", "y"),))],
            classes=[
                StorageClass("slow", wait=True, provisions=False),
                StorageClass("cloud", wait=True, driver="csi", topologies=self._maybe(0.4, (self._node_term(),))),
                StorageClass("now"),
            ],
        )
        world.volumes = [self._volume(i) for i in range(self._random.randint(0, 5))]
        world.claims = [self._claim(i, world.volumes) for i in range(5)]
        homes = [*names, *(["gone"] if self._chance(0.1) else [])]
        world.pods = [self._pod(f"b{i}", self._pick(homes)) for i in range(self._random.randint(0, 8))]
        if self._chance(0.15):
            world.nominated = [self._nominated(f"w{i}", self._pick(names)) for i in self._some(1, 2)]
        return world

    def pod(self) -> Pod:
        return self._pod("new", "")

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _maybe(self, probability: float, value: T) -> T | None:
        return value if self._chance(probability) else None

    def _some(self, *amounts: int) -> range:
        return range(self._pick(amounts))

    def _pick(self, values: list[T] | tuple[T, ...]) -> T:
        return self._random.choice(values)

    def _node(self, name: str) -> Node:
        labels = {HOST: name}
        for key, values, often in ((ZONE, "ab", 0.8), (RACK, "rst", 0.8), (SIZE, ("1", "7", "+12", "big"), 0.6)):
            if self._chance(often):
                labels[key] = self._pick(list(values))
        amounts = ((CPU, self._pick([2000, 4000])), (MEMORY, self._pick([4, 9])))
        sharing = self._sharing() if self._chance(0.3) else None
        return Node(
            name,
            (*amounts, *self._devices(sharing), (PODS, self._pick([0, 3] + [9] * 10))),
            tuple(sorted(labels.items())),
            tuple(self._taint() for _ in range(self._pick([0] * 8 + [1, 2]))),
            unschedulable=self._chance(0.05),
            attach_limits=(("csi", self._pick([0, 1, 2])),) if self._chance(0.7) else (),
            problem=self._maybe(0.03, Problem("status", "x", "is bad")),
            gpu_memory_mib=self._pick([0, 8, 16, 16, 24, 24]),
            sharing=sharing,
            sliced=self._chance(0.08),
            plugin_gone=self._chance(0.06),
        )

    def _sharing(self) -> Sharing:
        isolation: Isolation = self._pick(["none", "none", "memory"])
        return Sharing(
            self._pick([GPU, SHARED_GPU]),
            self._pick([0, 1, 2, 3]),
            self._pick([2, 3, 4]),
            isolation,
            one_only=isolation == "memory" or self._chance(0.3),
        )

    def _devices(self, sharing: Sharing | None) -> tuple[tuple[str, int], ...]:
        """A card that is broken is not offered."""
        if sharing is None:
            return ((GPU, self._pick([0, 1, 2, 3, 4])),)
        replicas = (sharing.cards or self._pick([1, 2])) * sharing.replicas - self._pick([0, 0, 0, 1])
        others = ((GPU, self._pick([0, 0, 2])),) if sharing.resource == SHARED_GPU else ()
        return (*others, (sharing.resource, replicas))

    def _taint(self) -> Taint:
        effects: list[Effect] = ["NoSchedule", "NoExecute", "PreferNoSchedule"]
        return Taint(self._pick("kl"), self._pick(["", "v", "5"]), self._pick(effects))

    def _toleration(self) -> Toleration:
        key = self._pick(["", "k", "l", "node.kubernetes.io/unschedulable"])
        effect: Effect | str = self._pick(["", "NoSchedule", "NoExecute"])
        operator = self._pick(["Exists", "Equal", "Gt", "Lt"]) if key else "Exists"
        return Toleration(key, operator, self._pick(["", "v", "3", "9", "+3"]), effect)

    def _pod(self, uid: str, node: str) -> Pod:
        namespace = self._pick(["one", "one", "two"])
        labels = {key: self._pick(["1", "2"]) for key in ("app", "tier") if self._chance(0.8)}
        return Pod(
            uid,
            namespace,
            uid,
            self._request(namespace),
            tuple(sorted(labels.items())),
            priority=self._pick([0, 0, 5]),
            node=node,
            deleting=bool(node) and self._chance(0.1),
            claims=tuple(self._random.sample(["c0", "c1", "c2", "c3", "c4", "c5"], self._pick([1, 1, 2])))
            if self._chance(0.35)
            else (),
            managed=not node,
        )

    def _nominated(self, uid: str, node: str) -> Pod:
        return replace(self._pod(uid, ""), nominated_node=node, managed=False)

    def _request(self, namespace: str) -> Request:
        resources = {CPU: self._pick([0, 200, 500, 1500]), MEMORY: self._pick([0, 0, 1, 4])}
        gpu = self._random.random()
        if gpu < 0.4:
            resources[GPU if gpu < 0.25 else SHARED_GPU] = self._pick([1, 1, 2])
        part = self._random.random() if gpu > 0.75 else self._random.random() * 2 if gpu < 0.4 else 2.0
        constraints = {
            "gpu_milli": self._pick([300, 500, 800]) if part < 0.6 else 0,
            "gpu_memory_mib": self._pick([2, 4, 5, 8, 12, 20]) if 0.6 <= part < 1.0 else 0,
            "isolation": self._pick(["", "", "", "none", "memory", "strong"]) if gpu < 0.4 else "",
            "node_selector": ((self._pick([ZONE, RACK]), self._pick("ar")),) if self._chance(0.05) else (),
            "node_terms": tuple(self._node_term() for _ in self._some(0, 1, 2)) if self._chance(0.08) else None,
            "tolerations": tuple(self._toleration() for _ in self._some(0, 0, 1, 2)),
            "ports": tuple(dict.fromkeys(self._port() for _ in self._some(1, 2))) if self._chance(0.2) else (),
            "spread": tuple(self._spread(namespace) for _ in self._some(1, 1, 2)) if self._chance(0.2) else (),
            "affinity": tuple(self._peers() for _ in self._some(1, 1, 2)) if self._chance(0.12) else (),
            "anti_affinity": tuple(self._peers() for _ in self._some(1, 1, 2)) if self._chance(0.12) else (),
        }
        return Request(tuple(sorted(resources.items())), **constraints)

    def _requirement(self, keys: tuple[str, ...], values: tuple[str, ...]) -> Requirement:
        operators: list[Operator] = ["In", "NotIn", "Exists", "DoesNotExist"]
        operator = self._pick(operators)
        amount = self._pick([1, 2]) if operator in ("In", "NotIn") else 0
        return Requirement(self._pick(keys), operator, tuple(self._random.sample(values, amount)))

    def _node_term(self) -> NodeTerm:
        expressions = [self._requirement((ZONE, RACK), ("a", "b", "r", "s")) for _ in self._some(0, 1, 1, 2)]
        if self._chance(0.3):
            compare: Operator = self._pick(["Gt", "Lt"])
            expressions.append(Requirement(SIZE, compare, (self._pick(["1", "5", "10", "x"]),)))
        named: Operator = self._pick(["In", "NotIn"])
        fields = (Requirement("metadata.name", named, (self._pick(["n0", "n1", "n9"]),)),) if self._chance(0.2) else ()
        return NodeTerm(tuple(expressions), fields)

    def _port(self) -> HostPort:
        ip = self._pick(["", "0.0.0.0", "10.0.0.1", "10.0.0.2"])
        return HostPort(ip, self._pick(["TCP", "UDP"]), self._pick([1, 2]))

    def _selector(self) -> LabelSelector | None:
        amount = self._pick([0, 1, 1, 1, 2])
        return self._maybe(
            0.95, LabelSelector(tuple(self._requirement(("app", "tier"), ("1", "2")) for _ in range(amount)))
        )

    def _peers(self) -> PeerTerm:
        by_label = LabelSelector((self._requirement(("team",), ("x", "y")),)) if self._chance(0.7) else LabelSelector()
        return PeerTerm(
            self._selector(),
            frozenset(self._random.sample(["one", "two"], self._pick([0, 1, 1, 2]))),
            self._pick([HOST, RACK, ZONE]),
            self._maybe(0.3, by_label),
        )

    def _spread(self, namespace: str) -> Spread:
        return Spread(
            PeerTerm(self._selector(), frozenset((namespace,)), self._pick([HOST, RACK, ZONE])),
            max_skew=self._pick([1, 1, 2]),
            required=self._chance(0.9),
            min_domains=self._pick([1, 1, 2, 3]),
            honor_affinity=self._chance(0.7),
            honor_taints=self._chance(0.5),
        )

    def _volume(self, number: int) -> Volume:
        return Volume(
            f"v{number}",
            self._pick(["slow", "slow", "cloud"]),
            self._pick([1, 2, 4]),
            self._pick([("ReadWriteOnce",), ("ReadWriteMany", "ReadWriteOnce")]),
            (self._node_term(),) if self._chance(0.5) else None,
            labels=(("kind", self._pick("fg")),),
            claim=self._pick(["", "", "", "one/c0", "one/c3", "two/other"]),
            driver=self._pick(["", "csi"]),
            available=self._chance(0.9),
            volume_mode=self._pick(["Filesystem"] * 5 + ["Block"]),
        )

    def _claim(self, number: int, volumes: list[Volume]) -> VolumeClaim:
        bound = self._pick(volumes).name if volumes and self._chance(0.4) else self._maybe(0.05, "lost") or ""
        return VolumeClaim(
            self._pick(["one", "one", "two"]),
            f"c{number}",
            bound,
            self._pick(["slow", "slow", "cloud", "cloud", "cloud", "now", ""]),
            self._pick([1, 2, 3]),
            self._pick([("ReadWriteOnce",), ("ReadWriteOnce",), ("ReadWriteMany",), ("ReadWriteOncePod",)]),
            selected_node=self._pick(["", "", "", "", "", "n0", "gone"]),
            selector=self._maybe(0.2, LabelSelector((self._requirement(("kind",), ("f", "g")),))),
            deleting=self._chance(0.03),
        )
