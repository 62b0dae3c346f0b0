# SPDX-License-Identifier: Apache-2.0
"""`why` of pods whose GPUs are devices by claim on some nodes and counted on others."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dovetail.core.model import GPU, Container, Pod
from dovetail.core.state import State
from dovetail.views.held_types import HeldPart
from dovetail.views.why import why
from dovetail.views.why_types import Why
from tests.views.divided import DRIVER, GPUS, cluster, device, gpu_slice, node, pod

CLASS = replace(GPUS, extended_resource=GPU)
TWO = tuple(device(f"gpu-{i}") for i in range(2))


def asking(name: str, gpus: int, **more: Any) -> Pod:
    made = pod(name, (GPU, gpus), **more)
    return made if made.node else replace(made, containers=(Container("main", ((GPU, gpus),)),))


def ask(state: State) -> Why:
    return why(state, "ns/asks", 1_000)


def test_it_is_placed_with_the_devices_that_it_will_have() -> None:
    answer = ask(cluster(node("a"), CLASS, gpu_slice("a", *TWO), asking("asks", 2)))
    assert (answer.state, answer.node, answer.gpus) == ("Placed", "a", ())
    assert answer.parts == tuple(HeldPart("claimed", f"{DRIVER}/a/gpu-{i}") for i in range(2))


def test_each_kind_of_node_is_refused_by_what_it_lacks() -> None:
    state = cluster(
        node("claimed"), node("counted", 2), CLASS, gpu_slice("claimed", *TWO),
        asking("first", 2), asking("second", 2), asking("asks", 1),
    )  # fmt: skip
    answer = ask(state)
    assert {(rule.code, rule.nodes) for rule in answer.rules} == {
        ("InsufficientResource", ("counted",)),
        ("DevicesNotAllocatable", ("claimed",)),
    }
    assert sorted((holder.node, holder.resource, holder.amount) for holder in answer.holders) == [
        ("claimed", "devices", "2"),
        ("counted", GPU, "2"),
    ]
    (one,) = answer.devices
    assert (one.node, one.rule, one.devices) == (
        "claimed", "is in use", tuple(f"{DRIVER}/claimed/gpu-{i}" for i in range(2)),
    )  # fmt: skip


def test_what_no_node_has_even_unused_can_never_be() -> None:
    answer = ask(cluster(node("claimed"), node("counted", 2), CLASS, gpu_slice("claimed", *TWO), asking("asks", 3)))
    assert answer.state == "Never"
    assert {rule.code for rule in answer.rules} == {"DevicesNotAllocatable", "InsufficientResource"}
