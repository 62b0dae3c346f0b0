# SPDX-License-Identifier: Apache-2.0
"""Random clusters with several namespaces. All names of every namespace but OWN have the MARKER in them."""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace

from dovetail.core.model import GPU, Gang, HostPort, Namespace, Node, Pod, Request
from dovetail.core.queues.types import Queue
from dovetail.core.state import State
from tests.views.queued import HOUR, MINUTE, NOW, node, pod, queue, state_of

OWN, MARKER = "own-team", "zmarkz"
OTHERS = (f"{MARKER}-b", f"c-{MARKER}")
OWN_PODS = ("mine-a", "mine-b", "mine-c")


def state(seed: int) -> State:
    return state_of(*reported(random.Random(seed)))


def reported(dice: random.Random) -> list[Node | Pod | Gang | Queue | Namespace]:
    """Nodes of 8 GPUs, queues with users and without, pods that run and wait, gangs, conflicts between pods."""
    nodes = [node(f"n{i}") for i in range(dice.randint(1, 3))]
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
