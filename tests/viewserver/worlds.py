# SPDX-License-Identifier: Apache-2.0
"""Random clusters with several namespaces. All names of every namespace but OWN have the MARKER in them."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from msgspec.structs import replace

from dovetail.core.model import GPU, Gang, HostPort, Namespace, Node, Pod, Request
from dovetail.core.queues.types import Queue
from dovetail.core.state import State
from dovetail.kube.api.changes import Change
from dovetail.kube.api.resources import CONTROL_PLANES, GPU_LEASES, GPU_NODES, LEASE_REQUESTS, PODS
from dovetail.kube.objects import leases as wire
from dovetail.kube.objects import topology
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.translate.read_notes import ReadNotes
from dovetail.kube.translate.reported import ReportedObjects, batch_of, notes_batch
from tests.views.queued import HOUR, MINUTE, NOW, node, pod, queue, state_of

OWN, MARKER = "own-team", "zmarkz"
OTHERS = (f"{MARKER}-b", f"c-{MARKER}")
OWN_PODS = ("mine-a", "mine-b", "mine-c")


def state(seed: int) -> State:
    return state_of(*reported(random.Random(seed)))


def reported(dice: random.Random) -> list[Node | Pod | Gang | Queue | Namespace]:
    """Nodes of 8 GPUs, queues with users and without, pods that run and wait, gangs, conflicts between pods."""
    labels = (("example.com/owner", f"{MARKER}-owner"), ("topology.kubernetes.io/zone", "a"))
    nodes = [node(f"n{i}") for i in range(dice.randint(1, 3))]
    nodes = [replace(one, labels=tuple(sorted((*one.labels, *labels)))) for one in nodes]
    queues = [
        queue(name, guarantee=dice.choice((0, 8)), limit=dice.choice((0, 0, 16)), by_user=dice.random() < 0.5)
        for name in ("a", "b")[: dice.randint(1, 2)]
    ]
    # Of others alone: an own pod that names it is refused.
    queues.append(queue("closed", namespaces=OTHERS))
    names = [one.name for one in queues]
    found: list[Node | Pod | Gang | Queue | Namespace] = [*nodes, *queues]
    found += [Namespace(one) for one in (OWN, *OTHERS)]
    for one in nodes:
        free = 8
        for i in range(dice.randint(1, 5)):
            gpus = dice.choice((1, 2, 4))
            if gpus <= free:
                free -= gpus
                found.append(_pod(dice, f"runs-{one.name}-{i}", gpus, names, on=one.name))
    for i in range(dice.randint(2, 8)):
        gpus = dice.choice((1, 2, 4, 8, 8, 16))
        if dice.random() < 0.6:
            found.append(_pod(dice, f"waits-{i}", gpus, names))
            continue
        first = _pod(dice, f"gang-{i}-0", gpus, names)
        label = first.name.rpartition("-")[0]
        gang = Gang(f"gang/{first.namespace}/{label}", first.namespace, label, min_count=2, created_ms=NOW - HOUR)
        found += [gang] if dice.random() < 0.8 else []
        found += [
            replace(first, uid=f"{first.uid}-{j}", name=f"{label}-{j}", gang=gang.id) for j in range(dice.randint(1, 3))
        ]
    # Own pods that wait and run under names that are also a namespace, a word of a sentence, and a number.
    for name, more in zip(OWN_PODS, ({}, {"on": nodes[0].name}, {}), strict=True):
        found.append(_pod(dice, name, dice.choice((1, 8, 16)), names, of=OWN, **more))
    return found


def objects(seed: int) -> ReportedObjects:
    """What is reported of the same cluster besides: the health of its nodes, leases, and finished pods. Through the
    batches in which it is sent."""
    dice = random.Random(seed)
    found = ReportedObjects("dovetail")
    found.take(batch_of(GPU_NODES, [Change("added", _gpu_node(dice, f"n{i}")) for i in range(3)]))
    quoted = f"metadata.annotations[dovetail.dev/bound].devices: '{MARKER}'"
    noted = {"Node n0": ReadNotes("GPUNode", ("GPUNode n0: status.nvlinks: is odd",))} | {
        f"Pod {one.key}": ReadNotes("", (f"Pod {one.key}: {quoted if one.namespace != OWN else 'is odd'}",))
        for one in state(seed).workloads.pods.values()
    }
    found.take(notes_batch(noted.items()))
    planes, requests, leases = [], [], []
    for namespace in (OWN, *OTHERS):
        prefix = "" if namespace == OWN else f"{MARKER}-"
        plane = f"{prefix}agent"
        planes.append(wire.AgentControlPlane(wire.LeaseMeta(plane, namespace, f"uid-{namespace}")))
        meta = wire.LeaseMeta(f"{prefix}asks", namespace, f"uid-asks-{namespace}")
        status = wire.LeaseRequestStatus(state="Waiting", reason="NoNodeFits", message=f"held by {OTHERS[0]}/x")
        requests.append(wire.LeaseRequest(meta, wire.LeaseRequestSpec(plane), status))
        meta = wire.LeaseMeta(f"{prefix}holds", namespace, f"uid-holds-{namespace}")
        leases.append(wire.GPULease(meta, wire.GPULeaseSpec(plane)))
    for resource, made in ((CONTROL_PLANES, planes), (LEASE_REQUESTS, requests), (GPU_LEASES, leases)):
        found.take(batch_of(resource, [Change("added", one) for one in made]))
    ended = [_ended(dice, namespace, i) for namespace in (OWN, *OTHERS) for i in range(2)]
    found.take(batch_of(PODS, [Change("modified", one) for one in ended]))
    return found


def _gpu_node(dice: random.Random, name: str) -> topology.GPUNode:
    bad = topology.GpuHealth("quarantined", "XID79", f"it fell off the bus; {OTHERS[0]}/{MARKER}-pod ran there")
    gpus = tuple(
        topology.GpuStatus(i, f"GPU-{name}-{i}", "NVIDIA H100", health=bad if dice.random() < 0.1 else None)
        for i in range(8)
    )
    seen = topology.Evidence("Pod", f"{MARKER}-system", f"{MARKER}-driver", "driver", f"error: {MARKER}")
    readiness = topology.NodeReadiness("pool", "driver", "DriverFailed", "it ends", "look at it", evidence=seen)
    by = dice.choice((f"user/{MARKER}: x", f"user/{MARKER}-admin", "rollout/cluster"))
    maintenance = (
        topology.NodeMaintenance(by=by, reason=dice.choice(("", "a new fan"))) if dice.random() < 0.7 else None
    )
    foreign = (topology.ForeignProcess(0, holder="other_pod", namespace=OTHERS[0], pod=f"{MARKER}-p"),)
    own = (topology.HolderProcess(1, namespace=OTHERS[0], pod=f"{MARKER}-q"),)
    return topology.GPUNode(
        topology.ObjectMeta(name),
        topology.GPUNodeSpec(maintenance=maintenance),
        topology.GPUNodeStatus(gpus=gpus, readiness=readiness, foreign_processes=foreign, holder_processes=own),
    )


def _ended(dice: random.Random, namespace: str, number: int) -> PodObject:
    prefix = "" if namespace == OWN else f"{MARKER}-"
    manifest = {
        "metadata": {
            "name": f"{prefix}done-{number}", "namespace": namespace, "uid": f"done-{namespace}-{number}",
            "labels": {"dovetail.dev/user": f"{prefix}user", "job-name": f"{prefix}done"},
        },
        "spec": {"schedulerName": "dovetail", "nodeName": "n0", "containers": [{"name": "c"}]},
        "status": {
            "phase": dice.choice(("Succeeded", "Failed")),
            "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 1, "reason": f"{prefix}Error"}}}],
        },
    }  # fmt: skip
    return msgspec.convert(manifest, PodObject)


def _pod(dice: random.Random, name: str, gpus: int, queues: list[str], on: str = "", of: str = "") -> Pod:
    namespace = of or dice.choice((OWN, *OTHERS))
    prefix = "" if namespace == OWN else f"{MARKER}-"
    user = dice.choice(("", f"{prefix}user-1", f"{prefix}user-2"))
    ports = (HostPort("", "TCP", 8080),) if dice.random() < 0.2 else ()
    more: dict[str, Any] = {
        "runs_ms": dice.choice((0, 2 * HOUR)),
        "since_ms": dice.randint(1, 90) * MINUTE if on else 0,
    }
    name = prefix + name
    one = pod(
        name, 0 if on and of else gpus, on, queue=dice.choice(queues), namespace=namespace, user=user,
        labels=(("job-name", f"{name}-job"),), owner=name, priority=dice.choice((0, 0, 5)), **more,
    )  # fmt: skip
    amounts = one.request.resources if one.request.resources != ((GPU, 0),) else ()
    return replace(one, request=Request(amounts, ports=ports))
