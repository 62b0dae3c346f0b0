# SPDX-License-Identifier: Apache-2.0
"""Clusters made by hand whose GPUs are divided: MIG cards, shared cards, devices by claim."""

from __future__ import annotations

from typing import Any

from dovetail.core import events as ev
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.devices.mig.products import of_product
from dovetail.core.devices.mig.static import Card
from dovetail.core.dra.types import (
    Allocation,
    Claim,
    ClaimSpec,
    Constraint,
    Device,
    DeviceClass,
    DeviceRequest,
    Grant,
    Slice,
)
from dovetail.core.event_handlers import apply
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Node, Pod, Request
from dovetail.core.policy import Policy, unhurried
from dovetail.core.state import State

A100 = of_product("NVIDIA A100-SXM4-40GB")
assert A100 is not None
SMALL, MIDDLE, BIG = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb", "nvidia.com/mig-3g.20gb"
SMALL_ONES = tuple(("1g.5gb", start) for start in range(7))
MIXED = (("3g.20gb", 0), ("2g.10gb", 4), ("1g.5gb", 6))
PRODUCT = "nvidia.com/gpu.product"
DRIVER = "gpu.example.com"


def cluster(*reported: Node | Pod | Slice | DeviceClass | Claim) -> State:
    """A state that knows all this, at second 1."""
    state = State(unhurried(Policy()))
    kinds: dict[type, Any] = {
        Node: ev.NodeChanged, Pod: ev.PodChanged, Slice: ev.SliceChanged, DeviceClass: ev.DeviceClassChanged,
        Claim: ev.ClaimChanged,
    }  # fmt: skip
    for one in reported:
        apply(state, kinds[type(one)](one))
    state.advance(1_000)
    return state


def node(name: str, gpus: int = 0, model: str = "H100", rack: str = "", cpu: int = 64, **more: Any) -> Node:
    """A node of whole GPUs, and of whatever its sharing and its cards have beside."""
    amounts = {CPU: 1000 * cpu, MEMORY: 2**39, PODS: 110} | ({GPU: gpus} if gpus else {})
    sharing: Sharing | None = more.get("sharing")
    if sharing is not None:
        amounts[sharing.resource] = sharing.cards * sharing.replicas
    for card in more.get("mig", ()):
        for profile, _ in card.geometry.members(card.instances):
            resource = card.geometry.profiles[profile].resource
            amounts[resource] = amounts.get(resource, 0) + 1
    labels = (("dovetail.dev/rack", rack),) * bool(rack) + ((PRODUCT, model),) * bool(model)
    return Node(name, tuple(sorted(amounts.items())), labels, **more)


def card(gpu: int, *instances: tuple[str, int], assumed: bool = False) -> Card:
    assert A100 is not None
    return Card(gpu, A100, A100.bits(instances), assumed)


def mig(name: str, *cards: Card, gpus: int = 0, **more: Any) -> Node:
    return node(name, gpus, "A100", mig=cards, geometry=A100, **more)


def pod(name: str, *asked: tuple[str, int], on: str = "", **more: Any) -> Pod:
    options = {key: more.pop(key) for key in list(more) if key in Request.__struct_fields__}
    namespace = more.pop("namespace", "ns")
    return Pod(f"{namespace}-{name}", namespace, name, Request(tuple(sorted(asked)), **options), node=on, **more)


def gpu_slice(name: str, *devices: Device, **more: Any) -> Slice:
    """The devices of a node, or of another driver."""
    return Slice(f"{name}-{DRIVER}", DRIVER, name, 1, 1, **({"node": name} | more), devices=devices)


def device(name: str, **attributes: Any) -> Device:
    return Device(name, tuple(sorted((f"{DRIVER}/{key}", value) for key, value in attributes.items())))


GPUS = DeviceClass("gpu", (f'device.driver == "{DRIVER}"',))


def request(count: int = 1, *selectors: str, **more: Any) -> DeviceRequest:
    return DeviceRequest("r", "gpu", selectors, count=count, **more)


def claim(
    name: str, *requests: DeviceRequest, has: tuple[str, str] | None = None, constraint: Constraint | None = None
) -> Claim:
    """`has` is (node, device) of the driver."""
    spec = ClaimSpec(tuple((one,) for one in requests), (constraint,) if constraint is not None else ())
    granted = Allocation((Grant("r", DRIVER, *has),), has[0]) if has is not None else None
    return Claim(f"{name}-uid", "ns", name, spec, allocation=granted)
