# SPDX-License-Identifier: Apache-2.0
"""What happens on one node, step by step: pods come, start and end, devices become unhealthy. Written by our own
prediction, which also decides which pods start or end; the referee gets the same steps and must answer the same after
each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core.devices.kubelet.admission import AdmissionRoom, AdmissionVerdict, Kubelet
from dovetail.core.devices.kubelet.hints import ids_of
from dovetail.core.devices.kubelet.holdings import Block, HeldResources, Holdings, PodHeld
from dovetail.core.devices.kubelet.inventory import DevicePool, Inventory, InventoryError
from dovetail.core.devices.kubelet.pods import ManagedPod
from tests.referee.kubelet_nodes import Dice, Node, manifest
from tools.controlplane.referee import Answer

Step = dict[str, Any]

NO_SHARED_CPUS = "default cpuset cannot be empty"
LOST_CPUS = "doesn't match with CPUs in state"
OTHER_GROUPS = "the expected machine state is different from the real one"
"""With these words a kubelet does not start again: with strict-cpu-reservation pods can take the last shared CPU; a pod
with managed pod-level resources that is refused when the kubelet finds it again can take CPUs with it for ever; and a
node can keep the group of a pod that has left, though a pod with another group is still there."""


class Story(Struct, dict=True):
    """`refuses`: what our inventory answers of a kubelet that would not start. `said` is parallel to `steps`. A story
    ends where something is left to chance (`uncertain`): its last step is not compared."""

    name: str
    node: Node
    refuses: str | None = None
    steps: list[Step] = field(default_factory=list)
    stated: list[dict[str, Any]] = field(default_factory=list)
    uncertain: bool = False
    asked_pods: list[ManagedPod] = field(default_factory=list)

    def case(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "question": "kubelet-admit",
            "gates": {
                "PodLevelResourceManagers": self.node.gates.pod_level_resource_managers,
                "PodLevelResourcesFixKubeletQOSClass": self.node.gates.pod_level_resources_fix_kubelet_qos_class,
            },
            "node": self.reported,
            "steps": self.steps,
        }

    def __post_init__(self) -> None:
        self.reported = self.node.reported()

    def came(self, uid: str) -> int:
        """The kubelet finds its pods again in the order in which it has let them in."""
        return int(uid.removeprefix("p"))


def story(seed: int, pods: int) -> Story:
    """Some `pods` that ask to be let in, on one node."""
    dice = Dice(seed)
    node = dice.node()
    reported = Story(str(seed), node)
    try:
        inventory = node.inventory()
    except InventoryError as error:
        reported.refuses = str(error)
        return reported
    kubelet, holdings = Kubelet(inventory, node.prefer), Holdings.of_empty(inventory)
    unstarted: dict[str, int] = {}
    while len(reported.asked_pods) < pods and not reported.uncertain:
        verdicts: dict[str, AdmissionVerdict] = {}
        chance = dice.dice.random()
        if chance < 0.2 and holdings.pods:
            uid = dice.dice.choice(sorted(holdings.pods))
            reported.uncertain = tangled([holdings.pods[uid]])
            holdings = kubelet.release(holdings, uid)
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
            pools = list(inventory.devices)
            position = dice.dice.randrange(len(pools))
            pools[position] = unhealthy(dice, pools[position])
            inventory = replace(inventory, devices=tuple(pools))
            kubelet = Kubelet(inventory, node.prefer)
            step = {"offer": node.offer(pools[position])}
        elif chance < 0.40 and holdings.pods:
            reported.uncertain = tangled(holdings.pods.values())
            for uid, held in sorted(holdings.pods.items(), key=lambda one: reported.came(one[0])):
                verdicts[uid] = kubelet.admit(holdings, uid, held.pod, _room(node, holdings, uid))
                holdings = verdicts[uid].holdings
            step = {"restart": True}
        else:
            uid, pod = f"p{len(reported.asked_pods)}", dice.pod(node)
            verdicts[uid] = kubelet.admit(holdings, uid, pod, _room(node, holdings, uid))
            holdings = verdicts[uid].holdings
            step = {"admit": manifest(uid, pod)}
            reported.asked_pods.append(pod)
            unstarted[uid] = 0
        unstarted = {uid: index for uid, index in unstarted.items() if uid in holdings.pods}
        reported.uncertain = reported.uncertain or not all(verdict.certain for verdict in verdicts.values())
        reported.steps.append(step)
        reported.stated.append(
            {"verdicts": {uid: _stated(one) for uid, one in verdicts.items()}} | state(inventory, holdings)
        )
    return reported


def tangled(pods: Iterable[PodHeld]) -> bool:
    """Whether memory is held within sets of nodes that overlap and are not the same. Then what is left where depends on
    the order in which the kubelet gives it back or adds it up again, which is that of a Go map."""
    masks = {block.mask for pod in pods for held in pod.containers for block in held.memory or ()}
    return any(one & other for one, other in combinations(masks, 2))


def _stated(verdict: AdmissionVerdict) -> dict[str, Any]:
    assert verdict.admitted is not None, verdict
    return {"admitted": verdict.admitted, "reason": verdict.reason, "message": verdict.message}


def unhealthy(dice: Dice, pool: DevicePool) -> DevicePool:
    """Some devices become unhealthy or healthy."""
    return replace(pool, devices=tuple(replace(one, healthy=one.healthy ^ dice.likely(0.15)) for one in pool.devices))


def _room(node: Node, holdings: Holdings, uid: str) -> AdmissionRoom | None:
    if node.allocatable is None:
        return None
    others = [held.pod for other, held in holdings.pods.items() if other != uid]
    requested = {"pods": len(others)}
    for pod in others:
        for name, value in pod.total_requests(True).items():
            requested[name] = requested.get(name, 0) + value
    return AdmissionRoom(node.allocatable, requested)


def state(inventory: Inventory, holdings: Holdings) -> dict[str, Any]:
    """In the referee's words."""
    pools = {pool.resource: pool.devices for pool in inventory.devices}
    types = inventory.memory_types

    def blocks(found: tuple[Block, ...] | None) -> list[dict[str, Any]]:
        reported = [
            {"numaAffinity": list(ids_of(one.mask)), "type": one.type, "size": one.size_bytes} for one in found or ()
        ]
        return sorted(reported, key=lambda one: (one["type"], one["numaAffinity"], one["size"]))

    def container(held: HeldResources) -> dict[str, Any]:
        devices = {name: sorted(pools[name][i].id for i in ids_of(mask)) for name, mask in held.devices}
        return {"cpus": list(ids_of(held.cpus or 0)), "memory": blocks(held.memory), "devices": devices}

    reported: dict[str, Any] = {"shared": [], "memory": {}, "pods": {}}
    if inventory.cpu_policy == "static":
        reported["shared"] = list(ids_of(holdings.shared_cpus))
    if inventory.memory_policy == "Static":
        reported["memory"] = {
            str(numa): {
                "assignments": node.assignments,
                "cells": list(ids_of(node.cells)),
                "free": dict(zip(types, node.free_bytes, strict=True)),
                "reserved": dict(zip(types, node.taken_bytes, strict=True)),
            }
            for numa, node in zip(inventory.numa, holdings.memory, strict=True)
        }
    for uid, held in holdings.pods.items():
        reported["pods"][uid] = {
            "cpus": list(ids_of(held.cpus or 0)),
            "memory": blocks(held.memory),
            "containers": {
                spec.name: container(one) for spec, one in zip(held.pod.containers, held.containers, strict=True)
            },
        }
    return reported


def heard(step: dict[str, Any]) -> dict[str, Any]:
    """A step of the referee's answer, its lists sorted where the kubelet has no order for them."""
    for pod in step["pods"].values():
        for held in (pod, *pod["containers"].values()):
            held["cpus"] = held["cpus"] or []
            held["memory"] = sorted(
                held["memory"] or [], key=lambda one: (one["type"], one["numaAffinity"], one["size"])
            )
            for devices in held.get("devices", {}).values():
                devices.sort()
    for numa in step["memory"].values():
        numa["cells"].sort()
    step["shared"] = step["shared"] or []
    return step


def disagreements(reported: Story, answer: Answer) -> Iterator[str]:
    """How the two differ, step by step; nothing where they agree in everything."""
    if (reported.refuses is None) != (answer.get("refuses") is None):
        yield f"case {reported.name}: the kubelet: {answer.get('refuses')!r} on the start, we {reported.refuses!r}"
        return
    if reported.refuses is not None:
        return
    certain = len(reported.stated) - reported.uncertain
    for i, (step, ours) in enumerate(zip(reported.steps[:certain], reported.stated[:certain], strict=True)):
        stops = _stops(reported.node, reported.stated[i - 1]) if "restart" in step else ""
        if stops or i == len(answer["steps"]):
            failed = answer.get("failed", "")
            if not stops or stops not in failed:
                yield f"case {reported.name}, step {i}: the kubelet goes on or not: it {failed!r}, we {stops!r}"
            return
        found = list(differences(ours, heard(answer["steps"][i])))
        yield from (f"case {reported.name}, step {i} ({next(iter(step))}), {one}" for one in found)
        if found:
            return


def _stops(node: Node, stated: dict[str, Any]) -> str:
    """Why the managers would not take up again what they had written down (validateState of both static policies)."""
    return _cpus_stop(node, stated) or _memory_stops(stated)


def _cpus_stop(node: Node, stated: dict[str, Any]) -> str:
    held = [one["cpus"] for pod in stated["pods"].values() for one in (pod, *pod["containers"].values()) if one["cpus"]]
    if node.cpu_policy != "static":
        return ""
    if not stated["shared"]:
        return NO_SHARED_CPUS if held else ""
    machine = {cpu.id for cpu in node.cpus}
    if "strict-cpu-reservation" in node.cpu_options:
        machine -= node.reserved_cpus
    return LOST_CPUS if machine != set(stated["shared"]).union(*held) else ""


def _memory_stops(stated: dict[str, Any]) -> str:
    """Nobody's memory is tangled here."""
    groups: dict[str, list[list[int]]] = {numa: [] for numa in stated["memory"]}
    for pod in stated["pods"].values():
        for block in pod["memory"] or [block for one in pod["containers"].values() for block in one["memory"]]:
            for numa in block["numaAffinity"]:
                groups[str(numa)].append(block["numaAffinity"])
    for numa, reported in stated["memory"].items():
        found = groups[numa]
        if reported["assignments"] != len(found) or reported["cells"] != (found[0] if found else [int(numa)]):
            return OTHER_GROUPS
    return ""


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    for uid in sorted(ours["verdicts"].keys() | theirs["verdicts"].keys()):
        here, there = ours["verdicts"].get(uid), theirs["verdicts"].get(uid)
        if here != there and not (here and there and _either(here, there)):
            yield f"pod {uid}: the kubelet {there}, ours {here}"
    for what in ("shared", "memory", "pods"):
        if ours[what] != theirs[what]:
            yield f"{what}:\n  the kubelet {theirs[what]}\n  ours        {ours[what]}"


_LACKS = tuple(
    f"Allocate failed due to {why}"
    for why in ("requested number of devices", "no healthy devices", "previously allocated devices")
)


def _either(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Of several resources that are lacking the kubelet names whichever comes first in the order of a Go map."""
    if ours["reason"] == theirs["reason"] == "EmptyPodSharedPoolError":
        return True
    if ours["reason"] == theirs["reason"]:
        return ours["message"].startswith(_LACKS) and theirs["message"].startswith(_LACKS)
    scalar = ("/", "hugepages-")
    return all(one["reason"].startswith("OutOf") and any(s in one["reason"] for s in scalar) for one in (ours, theirs))
