# SPDX-License-Identifier: Apache-2.0
"""Small worlds of devices, made by hand or at random, and a selector language that is easy to see through.

An expression is `attribute=value`, which errs where the attribute is missing as CEL does; `attribute~value`, which is
false then; `?expression`, of which it is not known what it reads; or `(`, which cannot be compiled.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import count

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.cluster.claims import Claims
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.shapes import Shape, Shapes
from dovetail.core.devices.layout import Layout
from dovetail.core.dra.types import (
    Capacity,
    Claim,
    ClaimSpec,
    Constraint,
    CounterSet,
    CounterUse,
    Device,
    DeviceClass,
    DeviceRequest,
    DeviceTaint,
    RequestPolicy,
    Slice,
    Value,
)
from dovetail.core.model import Node, NodeTerm, Pod, Request, Requirement, Toleration
from kubecel import SelectorError, SelectorReads

DRIVER = "gpu.test"


class Plain(Struct, frozen=True):
    expression: str

    @property
    def reads(self) -> frozenset[SelectorReads] | None:
        if self.expression.startswith("?"):
            return None
        domain, _, name = self._parts()[0].partition("/")
        return frozenset({SelectorReads("attributes", domain, name)})

    def matches(self, device: Device, driver: str) -> bool:
        attribute, sign, value = self._parts()
        found = dict(device.attributes).get(attribute)
        if found is None:
            if sign == "=":
                raise SelectorError(f"no such key: {attribute}")
            return False
        return str(found) == value

    def _parts(self) -> tuple[str, str, str]:
        text = self.expression.removeprefix("?")
        return text.partition("=") if "=" in text else text.partition("~")


class Compiler:
    """Counts what was compiled."""

    def __init__(self) -> None:
        self.compiled: list[str] = []

    def __call__(self, expression: str) -> Plain:
        self.compiled.append(expression)
        if expression.startswith("("):
            raise SelectorError("Syntax error: mismatched input")
        return Plain(expression)


class World:
    """Claims over a node table, driven as the cluster drives them."""

    def __init__(self) -> None:
        self.nodes = Nodes()
        self.shapes = Shapes(self.nodes)
        self.compile = Compiler()
        self.claims = Claims(self.nodes, self.compile)
        self._uids = count(1)

    def node(self, name: str, layout: Layout | None = None, **labels: str) -> int:
        slot = self.nodes.slot_of(name)
        self.nodes.put(Node(name, labels=tuple(sorted(labels.items())), layout=layout))
        self.claims.node_changed(slot)
        return slot

    def pod(self, *specs: ClaimSpec) -> Pod:
        """A pod with a claim of its own for each spec."""
        uid = f"pod-{next(self._uids)}"
        keys = []
        for i, spec in enumerate(specs):
            made = Claim(f"{uid}-{i}", "ns", f"{uid}-{i}", spec, owner_pod=uid)
            self.claims.put_claim(made)
            keys.append(made.key)
        return Pod(uid, "ns", uid, Request(), device_claims=tuple(keys))

    def shape(self, pod: Pod) -> Shape:
        return self.shapes.of(pod.request, self.claims.wanted(pod))

    def hold(self, node: str, pod: Pod):  # type: ignore[no-untyped-def]
        return self.claims.hold(self.nodes.slots[node], pod, self.shape(pod))

    def fits(self, node: str, *specs: ClaimSpec) -> bool:
        return self.answer(node, *specs).fits

    def answer(self, node: str, *specs: ClaimSpec):  # type: ignore[no-untyped-def]
        return self.claims.answers.of(self.nodes.slots[node], self.shapes.of(Request(), specs))


def device(name: str, **more: object) -> Device:
    """Keyword arguments that are no fields are attributes of the driver."""
    fields = {key: value for key, value in more.items() if key in Device.__struct_fields__}
    own = {f"{DRIVER}/{key}": value for key, value in more.items() if key not in fields}
    attributes = {**own, **dict(fields.pop("attributes", ()))}  # type: ignore[call-overload]
    return Device(name, tuple(sorted(attributes.items())), **fields)  # type: ignore[arg-type]


def pool(name: str, *devices: Device, node: str = "", **more: object) -> Slice:
    """One slice that is a whole pool, of the node that has its name by default."""
    where = {} if more.keys() & {"all_nodes", "node_terms", "per_device"} else {"node": node or name}
    return Slice(**{"name": f"{name}-slice", "driver": DRIVER, "pool": name, "generation": 1, "pool_slices": 1,
                    "devices": devices, **where, **more})  # type: ignore[arg-type]  # fmt: skip


def ask(
    count: int = 1, *selectors: str, name: str = "r", device_class: str = "gpu", **more: object
) -> tuple[DeviceRequest, ...]:
    return (DeviceRequest(name, device_class, selectors, count=count, **more),)  # type: ignore[arg-type]


def every(*selectors: str, name: str = "r", **more: object) -> tuple[DeviceRequest, ...]:
    return ask(1, *selectors, name=name, mode="All", **more)


def first(*alternatives: DeviceRequest, name: str = "r") -> tuple[DeviceRequest, ...]:
    return tuple(replace(one, name=f"{name}/{i}") for i, one in enumerate(alternatives))


def claim(*requests: tuple[DeviceRequest, ...], constraints: Sequence[Constraint] = ()) -> ClaimSpec:
    return ClaimSpec(requests, tuple(constraints))


def on(**labels: str) -> tuple[NodeTerm, ...]:
    return (NodeTerm(tuple(Requirement(key, "In", (value,)) for key, value in labels.items())),)


def world(*slices: Slice, nodes: Iterable[str] = ("n1",), classes: Iterable[DeviceClass] = ()) -> World:
    made = World()
    for name in nodes:
        made.node(name)
    for each in (DeviceClass("gpu"), *classes):
        made.claims.put_class(each)
    for one in slices:
        made.claims.put_slice(one)
    return made


# Random worlds.

MODELS: tuple[Value, ...] = ("a", "b")
RACKS: tuple[Value, ...] = (0, 1, (0, 1), (1, 2))
SHARED_CAPACITY = (
    (f"{DRIVER}/memory", Capacity(8000, RequestPolicy(2000, least_milli=1000, most_milli=6000, step_milli=1000))),
)


def random_device(dice: random.Random, name: str, sets: Sequence[CounterSet]) -> Device:
    attributes: dict[str, Value] = {"uuid": name}
    if dice.random() < 0.9:
        attributes["model"] = dice.choice(MODELS)
    if dice.random() < 0.9:
        attributes["rack"] = dice.choice(RACKS)
    more: dict[str, object] = {}
    if sets and dice.random() < 0.8:
        chosen = dice.choice(sets)
        more["consumes"] = (CounterUse(chosen.name, tuple((c, 1000 * dice.randint(1, 2)) for c, _ in chosen.counters)),)
    if dice.random() < 0.3:
        more["shareable"] = True
        more["capacity"] = SHARED_CAPACITY
    if dice.random() < 0.15:
        more["taints"] = (DeviceTaint("bad", "", dice.choice(("NoSchedule", "NoExecute", "None"))),)
    if dice.random() < 0.1:
        more["conditions"] = ("Ready",)
    return device(name, **attributes, **more)


def random_pool(dice: random.Random, name: str, nodes: Sequence[str]) -> list[Slice]:
    sets = [
        CounterSet(f"set{i}", (("slots", 1000 * dice.randint(1, 4)), ("memory", 1000 * dice.randint(2, 5))))
        for i in range(dice.randint(0, 2))
    ]
    devices = tuple(random_device(dice, f"{name}-d{i}", sets) for i in range(dice.randint(1, 4)))
    where: dict[str, object] = {}
    kind = dice.random()
    if kind < 0.6:
        where["node"] = dice.choice(nodes)
    elif kind < 0.75:
        where["all_nodes"] = True
    elif kind < 0.85:
        where["node_terms"] = on(zone=dice.choice(("x", "y")))
    else:
        where["per_device"] = True
        devices = tuple(
            replace(one, node=dice.choice(nodes)) if dice.random() < 0.6 else replace(one, all_nodes=True)
            for one in devices
        )
    half = dice.randint(0, len(devices)) if dice.random() < 0.3 else len(devices)
    parts = [part for part in (devices[:half], devices[half:]) if part]
    count = len(parts) + bool(sets)
    lacking = dice.random() < 0.05
    slices = [
        Slice(f"{name}-s{i}", DRIVER, name, 2, count + lacking, devices=part, **where)  # type: ignore[arg-type]
        for i, part in enumerate(parts)
    ]
    if sets:
        at = {key: value for key, value in where.items() if key != "per_device"} or {"all_nodes": True}
        slices.append(Slice(f"{name}-c", DRIVER, name, 2, count + lacking, counter_sets=tuple(sets), **at))  # type: ignore[arg-type]
    if dice.random() < 0.1:
        generation = dice.choice((1, 3))
        at = {"node": dice.choice(nodes)} if dice.random() < 0.5 else where
        slices.append(Slice(f"{name}-x", DRIVER, name, generation, 1, devices=(device("x", model="a"),), **at))  # type: ignore[arg-type]
    return slices


def random_request(dice: random.Random, name: str) -> tuple[DeviceRequest, ...]:
    def one() -> DeviceRequest:
        selectors = (f"{DRIVER}/model~{dice.choice(MODELS)}",) if dice.random() < 0.4 else ()
        more: dict[str, object] = {}
        if dice.random() < 0.3:
            more["amounts"] = ((f"{DRIVER}/memory", dice.randint(500, 6500)),)
        if dice.random() < 0.3:
            more["tolerations"] = (Toleration("bad", "Exists", "", dice.choice(("", "NoSchedule"))),)
        if dice.random() < 0.15:
            return every(*selectors, name=name, **more)[0]
        return ask(dice.choice((1, 1, 2)), *selectors, name=name, **more)[0]

    if dice.random() < 0.25:
        return first(one(), one(), name=name)
    exact = one()
    return (replace(exact, admin_access=dice.random() < 0.1),)


def random_spec(dice: random.Random) -> ClaimSpec:
    requests = tuple(random_request(dice, f"r{i}") for i in range(dice.choice((1, 1, 2, 2, 3))))
    constraints = []
    for _ in range(dice.choice((0, 0, 1, 2))):
        attribute = f"{DRIVER}/{dice.choice(('model', 'rack', 'uuid'))}"
        names = [alternatives[0].name for alternatives in requests]
        some = tuple(dice.sample([name.partition("/")[0] for name in names] + names, 1)) if dice.random() < 0.5 else ()
        constraints.append(Constraint(some, *((attribute, "") if dice.random() < 0.5 else ("", attribute))))
    return ClaimSpec(requests, tuple(constraints))


def random_world(dice: random.Random) -> World:
    made = World()
    names = ["n1", "n2", "n3"][: dice.randint(1, 3)]
    for name in names:
        made.node(name, zone=dice.choice(("x", "y")))
    made.claims.put_class(DeviceClass("gpu", (f"{DRIVER}/model~a",) if dice.random() < 0.2 else ()))
    for i in range(dice.randint(1, 2)):
        for one in random_pool(dice, f"p{i}", names):
            made.claims.put_slice(one)
    return made
