# SPDX-License-Identifier: Apache-2.0
"""Whether any placement of a gang exists: all assignments of its fewest pods to nodes, level by level, group by group.

Only whole GPUs count. A level of the fabric is a path of labels; a domain of a required level holds the whole group.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, product

from msgspec import Struct, field

from dovetail.core import events as ev
from dovetail.core.model import GPU, PODS, Gang, Node, Pod, Request

ZONE, RACK = "zone", "rack"
FABRIC = (ZONE, RACK)
Free = tuple[int, ...]


class Tree(Struct):
    gang: Gang
    sizes: list[int] = field(default_factory=list)
    below: list[Tree] = field(default_factory=list)

    @property
    def least(self) -> int:
        return self.gang.min_count if self.sizes or not self.below else 0

    def events(self) -> list[ev.Event]:
        pods = [gpu_pod(f"{self.gang.id}-{i}", size, self.gang.id) for i, size in enumerate(self.sizes)]
        own = [ev.GangChanged(self.gang), *(ev.PodChanged(pod) for pod in pods)]
        return [*own, *(event for tree in self.below for event in tree.events())]


def gpu_pod(uid: str, gpus: int = 1, gang: str = "", **more: object) -> Pod:
    return Pod(uid, "ns", uid, Request(((GPU, gpus),)), gang=gang, **more)


def gpu_node(name: str, gpus: int, zone: str = "", rack: str = "") -> Node:
    labels = {key: value for key, value in ((ZONE, zone), (RACK, rack)) if value}
    return Node(name, ((GPU, gpus), (PODS, 99)), tuple(labels.items()))


def domain(node: Node, key: str) -> tuple[str | None, ...] | None:
    """The path of labels down to the level; None where the node has no domain there."""
    labels = dict(node.labels)
    return tuple(labels.get(level) for level in FABRIC[: FABRIC.index(key) + 1]) if key in labels else None


def placeable(tree: Tree, nodes: Sequence[Node]) -> bool:
    free = tuple(dict(node.allocatable)[GPU] for node in nodes)
    return bool(_rests(tree, nodes, frozenset(range(len(nodes))), free))


def _rests(tree: Tree, nodes: Sequence[Node], allowed: frozenset[int], free: Free) -> set[Free]:
    """What may be left free once the fewest pods of the group are placed on the allowed nodes."""
    rests: set[Free] = set()
    for scope in _scopes(tree.gang.required, nodes, allowed):
        needed = tree.gang.min_groups or len(tree.below)
        for chosen in combinations(tree.below, needed):
            reached = {free}
            for sub in chosen:
                reached = {rest for before in reached for rest in _rests(sub, nodes, scope, before)}
            for sizes in set(combinations(sorted(tree.sizes), tree.least)):
                rests |= {rest for before in reached for rest in _after(sizes, scope, before)}
    return rests


def _scopes(keys: tuple[str, ...], nodes: Sequence[Node], allowed: frozenset[int]) -> set[frozenset[int]]:
    if not keys:
        return {allowed}
    options = [{domain(nodes[i], key) for i in allowed} - {None} for key in keys]
    return {
        frozenset(i for i in allowed if all(domain(nodes[i], key) == d for key, d in zip(keys, chosen, strict=True)))
        for chosen in product(*options)
    }


def _after(sizes: Sequence[int], scope: frozenset[int], free: Free) -> set[Free]:
    reached = {free}
    for size in sizes:
        reached = {(*f[:i], f[i] - size, *f[i + 1 :]) for f in reached for i in scope if f[i] >= size}
    return reached


def random_nodes(dice: random.Random) -> list[Node]:
    return [
        gpu_node(
            f"n{i}", dice.randint(0, 4), dice.choice(["a", "b", "a", "b", ""]), dice.choice(["r", "s", "r", "s", ""])
        )
        for i in range(dice.randint(1, 5))
    ]


def random_gang(dice: random.Random, gang_id: str, kinds: list[int], pods: int, **more: object) -> Tree:
    levels: list[tuple[str, ...]] = [(), (), (RACK,), (ZONE,), (ZONE, RACK)]
    preferences: list[tuple[str, ...]] = [(), (), (RACK,), (ZONE,), (RACK, ZONE)]
    gang = Gang(
        gang_id, "ns", gang_id, dice.randint(1, pods) if pods else 1,
        required=dice.choice(levels), preferred=dice.choice(preferences), **more,
    )  # fmt: skip
    return Tree(gang, [dice.choice(kinds) for _ in range(pods)])


def random_tree(dice: random.Random, kinds: list[int]) -> Tree:
    """A root with two or three sub-gangs, and sometimes a pod of its own."""
    root = random_gang(dice, "root", kinds, dice.randint(0, 1), min_groups=dice.choice([0, 0, 1, 2]))
    for i in range(dice.randint(2, 3)):
        root.below.append(random_gang(dice, f"sub{i}", kinds, dice.randint(1, 3), parent="root"))
    return root
