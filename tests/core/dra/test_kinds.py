# SPDX-License-Identifier: Apache-2.0
"""Equal nodes share their kind, and nodes that differ in what is asked about do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from dovetail.core.devices.layout import Layout
from dovetail.core.devices.products import assumed_layout
from dovetail.core.dra import kinds
from dovetail.core.dra.kinds import BUS_ID, DeviceKind, Kinds
from dovetail.core.dra.pools import PoolHere, PoolOffer
from dovetail.core.dra.types import Capacity, CounterUse, Device, DeviceTaint, RequestPolicy, Value
from kubecel import SelectorReads

DRIVER = "gpu.test"
MODEL = f"{DRIVER}/model"
SLOTS = ((("set", "slots"), 4000), (("set", "spare"), 1000))
MORE_SLOTS = ((("set", "slots"), 8000), (("set", "spare"), 1000))
READ = frozenset({SelectorReads("attributes", DRIVER, "model")})
COMPARED = ("numa/node",)
GPUS = 4
LAYOUT = assumed_layout("NVIDIA-H100-80GB-HBM3", GPUS)
OTHER_LAYOUT = assumed_layout("NVIDIA-H100-PCIe", GPUS)
Node = tuple[tuple[PoolHere, ...], Layout | None]


def gpu(number: int, node: str = "n") -> Device:
    attributes: dict[str, Value] = {
        f"{DRIVER}/model": "a",
        f"{DRIVER}/type": "gpu",
        f"{DRIVER}/uuid": f"{node}-{number}",
        BUS_ID: f"0000:{number:02x}:00.0",
        "numa/node": number // 2,
    }
    uses = (CounterUse("set", (("slots", 1000),)),)
    return Device(f"gpu-{number}", tuple(sorted(attributes.items())), (("memory", Capacity(8000)),), consumes=uses)


def node(name: str = "n", layout: Layout | None = LAYOUT) -> Node:
    offers = tuple(PoolOffer(gpu(i, name), True, name, None) for i in range(GPUS))
    return (PoolHere((DRIVER, name), offers=offers, counters=SLOTS),), layout


def with_offer(of: Node, number: int, change: Callable[[PoolOffer], PoolOffer]) -> Node:
    (pool,), layout = of
    offers = tuple(change(offer) if i == number else offer for i, offer in enumerate(pool.offers))
    return (replace(pool, offers=offers),), layout


def with_device(of: Node, number: int, **changes: object) -> Node:
    return with_offer(of, number, lambda offer: replace(offer, device=replace(offer.device, **changes)))  # type: ignore[arg-type]


def with_attribute(of: Node, number: int, name: str, value: Value | None) -> Node:
    attributes = dict(of[0][0].offers[number].device.attributes)
    attributes.pop(name)
    if value is not None:
        attributes[name] = value
    return with_device(of, number, attributes=tuple(sorted(attributes.items())))


def learned() -> Kinds:
    made = Kinds()
    made.read((READ,), COMPARED)
    return made


def essence(kind: DeviceKind) -> tuple[object, ...]:
    """All that a kind has, without the numbers that it got and what of its devices nobody asks about."""
    profiles = [
        (
            one.driver, [(type(value), value) for name, value in one.device.attributes if name == MODEL],
            one.device.capacity, [(taint.key, taint.value, taint.effect) for taint in one.device.taints],
            one.device.shareable,
        )
        for one in kind.profiles
    ]  # fmt: skip
    rest = [getattr(kind, one.name) for one in fields(kind) if one.name not in ("number", "profiles", "cards")]
    return profiles, rest


def test_nodes_share_their_kind_whatever_they_and_their_devices_are_called() -> None:
    made = learned()
    assert made.of(*node("n1")) is made.of(*node("n2"))
    named = node("n3")
    for i in range(GPUS):
        named = with_device(named, i, name=f"of-n3-{i}")
    assert made.of(*named) is made.of(*node("n1"))


CHANGES: dict[str, Callable[[Node], Node]] = {
    "another value of what is read": lambda of: with_attribute(of, 1, MODEL, "b"),
    "not the attribute at all": lambda of: with_attribute(of, 1, MODEL, None),
    "a value of another type": lambda of: with_attribute(of, 1, MODEL, ("a",)),
    "another value of what is compared": lambda of: with_attribute(of, 1, "numa/node", 7),
    "another GPU of the layout": lambda of: with_attribute(of, 1, BUS_ID, "0000:0a:00.0"),
    "no GPU of the layout": lambda of: with_attribute(of, 3, f"{DRIVER}/type", "other"),
    "another capacity": lambda of: with_device(of, 1, capacity=(("memory", Capacity(4000)),)),
    "another policy": lambda of: with_device(of, 1, capacity=(("memory", Capacity(8000, RequestPolicy(1000))),)),
    "a taint": lambda of: with_device(of, 1, taints=(DeviceTaint("bad", "", "NoSchedule"),)),
    "a taint since then": lambda of: with_device(of, 1, taints=(DeviceTaint("bad", "", "NoSchedule", 5),)),
    "to be shared": lambda of: with_device(of, 1, shareable=True),
    "conditions": lambda of: with_device(of, 1, conditions=("Ready",)),
    "more of a counter": lambda of: with_device(of, 1, consumes=(CounterUse("set", (("slots", 2000),)),)),
    "another counter": lambda of: with_device(of, 1, consumes=(CounterUse("set", (("spare", 1000),)),)),
    "not for this node": lambda of: with_offer(of, 1, lambda offer: replace(offer, here=False)),
    "other counters": lambda of: ((replace(of[0][0], counters=MORE_SLOTS),), of[1]),
    "incomplete": lambda of: ((replace(of[0][0], incomplete=True),), of[1]),
    "invalid": lambda of: ((replace(of[0][0], invalid="why"),), of[1]),
    "another driver": lambda of: ((replace(of[0][0], id=("other", "n")),), of[1]),
    "one device less": lambda of: ((replace(of[0][0], offers=of[0][0].offers[1:]),), of[1]),
    "another layout": lambda of: (of[0], OTHER_LAYOUT),
    "no layout": lambda of: (of[0], None),
}  # fmt: skip
NO_CHANGES: dict[str, Callable[[Node], Node]] = {
    "as it was": lambda of: of,
    "another value of what nobody reads": lambda of: with_attribute(of, 1, f"{DRIVER}/uuid", "x"),
    "another name": lambda of: with_device(of, 1, name="renamed-9"),
    "no bus id": lambda of: with_attribute(of, 2, BUS_ID, None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_node_that_changed_is_distinguished(change: Callable[[Node], Node]) -> None:
    made, plain = learned(), node("n1")
    before = made.of(*plain)
    changed = made.of(*change(node("n2")))
    assert changed is not before
    assert changed is made.of(*change(node("n3")))
    assert made.of(*node("n4")) is before


def test_true_is_not_one() -> None:
    made = learned()
    assert made.of(*with_attribute(node(), 1, MODEL, True)) is not made.of(*with_attribute(node(), 1, MODEL, 1))


def test_when_a_taint_was_added_makes_no_kind() -> None:
    made = learned()
    tainted = [with_device(node(), 1, taints=(DeviceTaint("bad", "", "NoSchedule", at_ms),)) for at_ms in (1, 2)]
    assert made.of(*tainted[0]) is made.of(*tainted[1])


def test_what_is_read_later_separates_nodes_that_were_one() -> None:
    made = learned()
    nodes = [with_attribute(node(), 1, f"{DRIVER}/uuid", uuid) for uuid in ("x", "y")]
    assert made.of(*nodes[0]) is made.of(*nodes[1])
    made.read((frozenset({SelectorReads("attributes", DRIVER, "uuid")}),), ())
    assert made.of(*nodes[0]) is not made.of(*nodes[1])


def test_what_is_compared_later_separates_nodes_that_were_one() -> None:
    made = learned()
    nodes = [with_attribute(node(), 1, f"{DRIVER}/uuid", uuid) for uuid in ("x", "n-0")]
    assert made.of(*nodes[0]) is made.of(*nodes[1])
    made.read((), (f"{DRIVER}/uuid",))
    assert made.of(*nodes[0]) is not made.of(*nodes[1])


def test_what_is_compared_later_and_no_device_has_is_known_to_the_kinds_made_before() -> None:
    made = learned()
    kind = made.of(*node())
    made.read((), ("rack/row",))
    assert made.of(*node()) is kind
    assert kind.compared("rack/row") == (None,) * GPUS


def test_what_selectors_read_and_no_device_has_makes_no_kinds_anew() -> None:
    made = learned()
    kind = made.of(*node())
    for n in range(100):
        made.read((frozenset({SelectorReads("attributes", "made-up", f"name{n}")}),), (f"made-up/other{n}",))
        assert made.of(*node()) is kind
    made.forget()
    assert made.of(*node()) is kind


def test_without_a_bus_id_the_number_in_the_name_states_which_gpu_a_device_is() -> None:
    made, plain = learned(), with_attribute(node(), 3, BUS_ID, None)
    assert made.of(*plain).gpus == (0, 1, 2, 3)
    assert made.of(*with_device(plain, 0, name="gpu-9")).gpus == (3, 0, 1, 2)


def test_a_shared_kind_cannot_be_changed() -> None:
    kind = learned().of(*node())
    with pytest.raises(AttributeError, match="immutable"):
        kind.shareable = 1  # type: ignore[misc]


def changed(names: Iterable[str], name: str) -> Node:
    made = node(name)
    for each in names:
        made = (CHANGES | NO_CHANGES)[each](made)
    return made


# A device less moves the numbers of the others.
COMBINED = sorted(CHANGES.keys() - {"one device less"} | NO_CHANGES.keys())


@pytest.mark.slow
@given(st.lists(st.lists(st.sampled_from(COMBINED), max_size=3, unique=True), min_size=2, max_size=6), st.booleans())
def test_nodes_are_of_one_kind_just_where_what_is_made_of_each_alone_is_equal(
    reported: list[list[str]], forgetful: bool
) -> None:
    """Each node on its own, in a room that has seen no other, is the oracle."""
    nodes = []
    for i, names in enumerate(reported):
        try:
            nodes.append(changed(names, f"n{i}"))
        except KeyError:
            # An attribute that an earlier change took away.
            continue
    alone = [essence(learned().of(*one)) for one in nodes]
    made = learned()
    with pytest.MonkeyPatch.context() as patch:
        if forgetful:
            patch.setattr(kinds, "_REMEMBERED", 1)
        found = [made.of(*one) for one in nodes]
        again = [made.of(*one) for one in nodes]
    assert [essence(one) for one in found] == alone
    assert all(one is other for one, other in zip(found, again, strict=True))
    for one, what in zip(found, alone, strict=True):
        assert [one is other for other in found] == [what == other for other in alone]
