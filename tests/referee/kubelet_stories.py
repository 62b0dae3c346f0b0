# SPDX-License-Identifier: Apache-2.0
"""What happens on one node, step by step: pods come, start and end, devices fall ill. Told by our own prediction, which
also says who is there to start or end; the referee hears the same steps and must say the same after each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from dovetail.core.devices.kubelet.admission import Kubelet, Room
from dovetail.core.devices.kubelet.hints import ids_of
from dovetail.core.devices.kubelet.holdings import Block, Held, Holdings
from dovetail.core.devices.kubelet.inventory import Inventory, InventoryError
from dovetail.core.devices.kubelet.pods import Pod
from tests.referee.kubelet_nodes import Dice, Node, manifest
from tools.controlplane.referee import Answer

Step = dict[str, Any]


@dataclass
class Story:
    """`refuses`: what our inventory says of a kubelet that would not start. `said` is parallel to `steps`. A story ends
    where something is chosen at random (`uncertain`)."""

    name: str
    node: Node
    refuses: str | None = None
    steps: list[Step] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)
    uncertain: bool = False
    asked_pods: list[Pod] = field(default_factory=list)

    def case(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "question": "kubelet-admit",
            "gates": {"PodLevelResourceManagers": self.node.gates.pod_level_resource_managers},
            "node": self.told,
            "steps": self.steps,
        }

    def __post_init__(self) -> None:
        self.told = self.node.told()


def story(seed: int, pods: int) -> Story:
    """Some `pods` that ask to be let in, on one node."""
    dice = Dice(seed)
    node = dice.node()
    told = Story(str(seed), node)
    try:
        inventory = node.inventory()
    except InventoryError as error:
        told.refuses = str(error)
        return told
    kubelet, holdings = Kubelet(inventory, node.prefer), Holdings.of_empty(inventory)
    unstarted: dict[str, int] = {}
    while len(told.asked_pods) < pods and not told.uncertain:
        admitted, reason, message = True, "", ""
        chance = dice.dice.random()
        if chance < 0.2 and holdings.pods:
            uid = dice.dice.choice(sorted(holdings.pods))
            holdings = kubelet.release(holdings, uid)
            unstarted.pop(uid, None)
            step: Step = {"end": uid}
        elif chance < 0.35 and unstarted:
            uid = dice.dice.choice(sorted(unstarted))
            holdings = kubelet.started(holdings, uid, unstarted[uid])
            containers = holdings.pods[uid].pod.containers
            step = {"start": {"uid": uid, "container": containers[unstarted[uid]].name}}
            unstarted[uid] += 1
            if unstarted[uid] == len(containers):
                del unstarted[uid]
        elif chance < 0.38:
            inventory = fallen_ill(dice, inventory)
            kubelet = Kubelet(inventory, node.prefer)
            step = {"offer": node.offer(dice.dice.choice(inventory.devices))}
            inventory = replace(
                inventory,
                devices=tuple(
                    pool if pool.resource == step["offer"]["resource"] else old
                    for pool, old in zip(inventory.devices, node.pools, strict=True)
                ),
            )
            node.pools, kubelet = inventory.devices, Kubelet(inventory, node.prefer)
        else:
            uid, pod = f"p{len(told.asked_pods)}", dice.pod(node)
            verdict = kubelet.admit(holdings, uid, pod, _room(node, holdings))
            assert verdict.admitted is not None, verdict
            holdings, admitted = verdict.holdings, verdict.admitted
            reason, message, told.uncertain = verdict.reason, verdict.message, not verdict.certain
            step = {"admit": manifest(uid, pod)}
            told.asked_pods.append(pod)
            if admitted:
                unstarted[uid] = 0
        told.steps.append(step)
        told.said.append(
            {"admitted": admitted, "reason": reason, "message": message} | state(inventory, holdings),
        )
    return told


def fallen_ill(dice: Dice, inventory: Inventory) -> Inventory:
    """Some devices fall ill or get well."""
    pools = []
    for pool in inventory.devices:
        devices = tuple(replace(one, healthy=one.healthy ^ dice.likely(0.15)) for one in pool.devices)
        pools.append(replace(pool, devices=devices))
    return replace(inventory, devices=tuple(pools))


def _room(node: Node, holdings: Holdings) -> Room | None:
    if node.allocatable is None:
        return None
    requested = {"pods": len(holdings.pods)}
    for held in holdings.pods.values():
        for name, value in held.pod.total_requests(True).items():
            requested[name] = requested.get(name, 0) + value
    return Room(node.allocatable, requested)


def state(inventory: Inventory, holdings: Holdings) -> dict[str, Any]:
    """In the referee's words."""
    pools = {pool.resource: pool.devices for pool in inventory.devices}
    types = inventory.memory_types

    def blocks(found: tuple[Block, ...] | None) -> list[dict[str, Any]]:
        told = [{"numaAffinity": list(ids_of(one.mask)), "type": one.type, "size": one.size_bytes} for one in found or ()]
        return sorted(told, key=lambda one: (one["type"], one["numaAffinity"], one["size"]))

    def container(held: Held) -> dict[str, Any]:
        devices = {name: sorted(pools[name][i].id for i in ids_of(mask)) for name, mask in held.devices}
        return {"cpus": list(ids_of(held.cpus or 0)), "memory": blocks(held.memory), "devices": devices}

    told: dict[str, Any] = {"shared": [], "memory": {}, "pods": {}}
    if inventory.cpu_policy == "static":
        told["shared"] = list(ids_of(holdings.shared_cpus))
    if inventory.memory_policy == "Static":
        told["memory"] = {
            str(numa): {
                "assignments": node.assignments,
                "cells": list(ids_of(node.cells)),
                "free": dict(zip(types, node.free_bytes, strict=True)),
                "reserved": dict(zip(types, node.taken_bytes, strict=True)),
            }
            for numa, node in zip(inventory.numa, holdings.memory, strict=True)
        }
    for uid, held in holdings.pods.items():
        told["pods"][uid] = {
            "cpus": list(ids_of(held.cpus or 0)),
            "memory": blocks(held.memory),
            "containers": {
                spec.name: container(one) for spec, one in zip(held.pod.containers, held.containers, strict=True)
            },
        }
    return told


def heard(step: dict[str, Any]) -> dict[str, Any]:
    """A step of the referee's answer, its lists sorted where the kubelet has no order for them."""
    for pod in step["pods"].values():
        for held in (pod, *pod["containers"].values()):
            held["cpus"] = held["cpus"] or []
            held["memory"] = sorted(held["memory"] or [], key=lambda one: (one["type"], one["numaAffinity"], one["size"]))
            for devices in held.get("devices", {}).values():
                devices.sort()
    for numa in step["memory"].values():
        numa["cells"].sort()
    step["shared"] = step["shared"] or []
    return step


def disagreements(told: Story, answer: Answer) -> Iterator[str]:
    """What the two say differently, step by step; nothing where they agree in everything."""
    if (told.refuses is None) != (answer.get("refuses") is None):
        yield f"case {told.name}: the kubelet says {answer.get('refuses')!r} of starting, we say {told.refuses!r}"
        return
    if told.refuses is not None:
        return
    certain = len(told.said) - told.uncertain
    for i, (ours, theirs) in enumerate(zip(told.said[:certain], answer["steps"][:certain], strict=True)):
        theirs = heard(theirs)
        for what in ours:
            if ours[what] != theirs[what] and not _either(told.steps[i], what, ours, theirs):
                yield (
                    f"case {told.name}, step {i} ({next(iter(told.steps[i]))}), {what}:\n"
                    f"  the kubelet says {theirs[what]}\n  we say {ours[what]}"
                )
        if ours["admitted"] != theirs["admitted"]:
            return


_LACKS = ("Allocate failed due to requested number of devices", "Allocate failed due to no healthy devices")


def _either(step: Step, what: str, ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Of several resources that a container lacks the kubelet names whichever comes first in the order of a Go map."""
    if "admit" not in step:
        return False
    if what == "message" and ours["message"].startswith(_LACKS) and theirs["message"].startswith(_LACKS):
        return True
    scalar = ("/", "hugepages-")
    both = (ours["reason"], theirs["reason"])
    return what in ("reason", "message") and all(r.startswith("OutOf") and any(s in r for s in scalar) for r in both)


