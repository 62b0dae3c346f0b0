# SPDX-License-Identifier: Apache-2.0
"""`why` of pods that ask for MIG instances, shares of a card, or devices by claim: what they have, or which rule keeps
each card and device from them, and its holder."""

from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.cli.console import Console
from dovetail.cli.why_report import show
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.dra.types import (
    Capacity,
    Claim,
    Constraint,
    CounterSet,
    CounterUse,
    Device,
    DeviceTaint,
    RequestPolicy,
)
from dovetail.core.model import SHARED_GPU, Pod
from dovetail.core.reasons import When
from dovetail.core.state import State
from dovetail.views.held_types import HeldPart, HolderRefused
from dovetail.views.why import why
from dovetail.views.why_types import Why
from tests.views.divided import (
    BIG,
    DRIVER,
    GPUS,
    MIDDLE,
    MIXED,
    SMALL,
    SMALL_ONES,
    card,
    claim,
    cluster,
    device,
    gpu_slice,
    mig,
    node,
    pod,
    request,
)

TIME = Sharing(SHARED_GPU, 2, 4)


def ask(state: State) -> Why:
    return why(state, "ns/asks", 1_000)


def printed(answer: Why) -> str:
    """In one line, however it was wrapped."""
    out = io.StringIO()
    show(answer, Console(file=out), 1_000)
    return " ".join(out.getvalue().split())


def rules(answer: Why) -> dict[str, str]:
    return {name: one.rule for one in answer.devices for name in one.devices}


def test_a_card_without_the_profile_names_its_instances_their_pods_and_the_slice_rule() -> None:
    split = (("2g.10gb", 0), ("2g.10gb", 2), ("1g.5gb", 4))
    state = cluster(
        mig("a", card(0, *split)), pod("x", (MIDDLE, 2), on="a"), pod("y", (SMALL, 1), on="a"), pod("asks", (BIG, 1))
    )
    answer = ask(state)
    assert (answer.code, answer.repartition) == ("NoNodeFits", None)
    (one,) = answer.devices
    assert (one.node, one.devices, one.holders) == ("a", ("GPU 0",), ("ns/x", "ns/y"))
    assert one.rule == (
        "no 3g.20gb among its instances 2g.10gb@0, 2g.10gb@2, 1g.5gb@4; beside those in use: it needs 3 compute slices "
        "and 2 are left"
    )
    assert one.rule in printed(answer)


def test_instances_that_are_all_in_use_name_their_holders() -> None:
    state = cluster(mig("a", card(0, *MIXED)), pod("x", (BIG, 1), on="a"), pod("asks", (BIG, 1)))
    answer = ask(state)
    assert answer.state is When.NOT_YET
    assert rules(answer) == {"GPU 0": "all its 3g.20gb are in use"}
    (holder,) = answer.holders
    assert (holder.pod, holder.resource, holder.amount, holder.devices) == ("ns/x", BIG, "1", ("0/3g.20gb@0",))
    assert "ns/x a nvidia.com/mig-3g.20gb 1 0/3g.20gb@0" in printed(answer)


def test_cards_that_could_be_divided_anew_are_a_line_of_their_own() -> None:
    answer = ask(cluster(mig("a", card(0, *SMALL_ONES)), pod("asks", (BIG, 1))))
    assert answer.repartition is not None and answer.repartition.node == "a"
    assert f"It would fit after a repartition of idle GPUs: {answer.repartition}" in printed(answer)
    assert rules(answer)["GPU 0"].startswith("no 3g.20gb among its instances 1g.5gb@0, 1g.5gb@1")


def test_an_assumed_layout_is_not_divided_and_is_marked() -> None:
    answer = ask(cluster(mig("a", card(0, *SMALL_ONES, assumed=True)), pod("asks", (BIG, 1))))
    assert answer.repartition is None
    assert rules(answer)["GPU 0"].endswith("their placements are assumed, so it is not repartitioned")


def test_a_card_with_fewer_free_than_the_pod_needs_states_how_many() -> None:
    answer = ask(cluster(mig("a", card(0, *SMALL_ONES)), pod("x", (SMALL, 4), on="a"), pod("asks", (SMALL, 5))))
    assert rules(answer) == {"GPU 0": "3 of its 7 1g.5gb are free"}


def test_the_nodes_that_come_nearest_are_first_and_equal_ones_are_reported_once() -> None:
    nodes = [mig(name, card(0, *MIXED)) for name in "abc"]
    taken = [pod(f"x{name}", (BIG, 1), on=name) for name in "abc"]
    more = [pod("ya", (MIDDLE, 1), on="a"), pod("yb", (MIDDLE, 1), on="b")]
    answer = ask(cluster(*nodes, *taken, *more, pod("asks", (BIG, 1))))
    assert [one.node for one in answer.devices] == ["c", "a"]


def test_the_shared_card_that_comes_nearest_and_its_holders() -> None:
    state = cluster(
        node("t", sharing=TIME, gpu_memory_mib=24_000),
        pod("x", (SHARED_GPU, 1), on="t", gpu_milli=900),
        pod("y", (SHARED_GPU, 1), on="t", gpu_milli=500), pod("z", (SHARED_GPU, 1), on="t", gpu_milli=100),
        pod("asks", (SHARED_GPU, 1), gpu_memory_mib=18_000),
    )  # fmt: skip
    answer = ask(state)
    assert (answer.state, [rule.code for rule in answer.rules]) == (When.NOT_YET, ["InsufficientGpuShare"])
    (one,) = answer.devices
    assert (one.devices, one.lacks) == (("GPU 1",), 250)
    assert one.rule == "needs 750/1000 (18000 MiB), 500/1000 (12000 MiB) is left"
    assert one.holders == ("ns/y (500/1000)",)
    amounts = [(holder.pod, holder.resource, holder.amount) for holder in answer.holders]
    assert amounts == [
        (f"ns/{name}", "share of a GPU", f"{milli}/1000") for name, milli in (("x", 900), ("y", 500), ("z", 100))
    ]


FOUR = tuple(device(f"gpu-{i}", index=i, root="left" if i < 2 else "right") for i in range(4))


def test_an_instance_that_takes_turns_needs_the_room_that_its_group_has_not_yet() -> None:
    turns = {"gpu_asleep_mib": 2_000, "turn_group": "ns"}
    state = cluster(
        node("t", sharing=Sharing(SHARED_GPU, 1, 4), gpu_memory_mib=24_000),
        pod("x", (SHARED_GPU, 1), on="t", gpu_memory_mib=12_000, **turns),
        pod("y", (SHARED_GPU, 1), on="t", gpu_memory_mib=6_000),
        pod("asks", (SHARED_GPU, 1), gpu_memory_mib=20_000, **turns),
    )  # fmt: skip
    answer = ask(state)
    (one,) = answer.devices
    # 2,000 asleep, and a room of 18,000 in place of 10,000.
    assert one.rule == "needs 416/1000 (10000 MiB), 250/1000 (6000 MiB) is left"
    assert "20000 MiB while it is awake, 2000 MiB asleep" in printed(answer)


def refused(*reported: Any, **devices: Any) -> tuple[HolderRefused, ...]:
    answer = ask(cluster(node("a"), GPUS, *reported, pod("asks", device_claims=("ns/mine",))))
    assert answer.state in (When.NEVER, When.NOT_YET)
    assert [rule.code for rule in answer.rules] == ["DevicesNotAllocatable"]
    return answer.devices


def names(*numbers: int) -> tuple[str, ...]:
    return tuple(f"{DRIVER}/a/gpu-{i}" for i in numbers)


def test_devices_that_a_selector_refuses_and_those_that_are_in_use() -> None:
    found = refused(
        gpu_slice("a", *FOUR),
        claim("theirs", request(), has=("a", "gpu-3")),
        pod("x", on="a", device_claims=("ns/theirs",)),
        claim("mine", request(2, f'device.attributes["{DRIVER}"].index > 1')),
    )
    assert [(one.devices, one.rule, one.holders) for one in found] == [
        (names(0, 1), "request r: selector #0 does not match", ()),
        (names(3), "is in use", ("claim ns/theirs (pod ns/x)",)),
    ]


def test_a_pod_with_claimed_devices_is_a_holder() -> None:
    state = cluster(
        node("a"), GPUS, gpu_slice("a", *FOUR[:1]), claim("theirs", request(), has=("a", "gpu-0")),
        pod("x", on="a", device_claims=("ns/theirs",)),
        claim("mine", request()), pod("asks", device_claims=("ns/mine",)),
    )  # fmt: skip
    (holder,) = ask(state).holders
    assert (holder.pod, holder.resource, holder.amount, holder.devices) == ("ns/x", "devices", "1", names(0))


def test_a_device_with_a_taint_and_one_on_which_a_selector_errs() -> None:
    unhealthy = replace(FOUR[0], taints=(DeviceTaint("broken", "yes", "NoSchedule"),))
    found = refused(gpu_slice("a", unhealthy), claim("mine", request()))
    assert [(one.devices, one.rule) for one in found] == [
        (names(0), "has a taint that is not tolerated: broken=yes:NoSchedule")
    ]
    found = refused(gpu_slice("a", FOUR[0]), claim("mine", request(1, f'device.attributes["{DRIVER}"].other > 1')))
    (one,) = found
    assert one.devices == names(0) and "CEL runtime error" in one.rule


def test_counters_that_others_use_up() -> None:
    counters = CounterSet("memory", (("GiB", 40_000),))
    parts = [Device(f"part-{i}", consumes=(CounterUse("memory", (("GiB", 20_000),)),)) for i in range(3)]
    whole = replace(gpu_slice("a", *parts), pool_slices=2)
    shared = replace(gpu_slice("a", counter_sets=(counters,)), name="a-counters", pool_slices=2)
    found = refused(
        whole, shared, claim("one", request(), has=("a", "part-0")), claim("two", request(), has=("a", "part-1")),
        claim("mine", request()),
    )  # fmt: skip
    by_device = {one.devices: (one.rule, one.holders) for one in found}
    assert by_device[(f"{DRIVER}/a/part-2",)] == ("needs 20 of memory/GiB, 0 is left", ("claim ns/one", "claim ns/two"))


def test_a_shared_device_of_which_too_little_is_left() -> None:
    policy = RequestPolicy(default_milli=10_000, least_milli=1_000)
    big = Device("big", capacity=((f"{DRIVER}/memory", Capacity(40_000, policy, "memory")),), shareable=True)
    theirs = claim("theirs", request(), has=("a", "big"))
    assert theirs.allocation is not None
    grant = replace(theirs.allocation.grants[0], share="s", consumed=((f"{DRIVER}/memory", 30_000),))
    theirs = replace(theirs, allocation=replace(theirs.allocation, grants=(grant,)))
    found = refused(gpu_slice("a", big), theirs, claim("mine", request(amounts=(("memory", 20_000),))))
    assert [(one.rule, one.holders) for one in found] == [
        (f"needs 20 of its {DRIVER}/memory, 10 is left", ("claim ns/theirs",))
    ]


def test_free_devices_that_a_constraint_keeps_apart_state_what_it_compares() -> None:
    constraint = Constraint(match=f"{DRIVER}/root")
    found = refused(gpu_slice("a", *FOUR), claim("mine", request(3), constraint=constraint))
    by_rule = {one.rule: one.devices for one in found}
    text = f"is free, but for the constraint of the claim: matchAttribute {DRIVER}/root is "
    assert by_rule == {f"{text}left": names(0, 1), f"{text}right": names(2, 3)}


def test_a_pool_of_which_slices_are_missing() -> None:
    found = refused(replace(gpu_slice("a", *FOUR), pool_slices=2), claim("mine", request()))
    assert [(one.devices, one.rule) for one in found] == [((f"{DRIVER}/a",), "its pool is incomplete")]


@pytest.mark.parametrize(
    ("reported", "parts", "text"),
    [
        (
            [mig("a", card(0, *MIXED)), pod("asks", (BIG, 1))],
            (HeldPart("instance", "0/3g.20gb@0"),),
            "with MIG instance 0/3g.20gb@0.",
        ),
        (
            [node("a", sharing=TIME), pod("asks", (SHARED_GPU, 1), gpu_milli=300)],
            (HeldPart("share", "0", 300),),
            "with 300/1000 of GPU 0.",
        ),
        (
            [node("a", sharing=TIME), pod("asks", (SHARED_GPU, 1), on="a", gpu_milli=300)],
            (HeldPart("share", "", 300),),
            "with 300/1000 of a GPU.",
        ),
        (
            [node("a"), GPUS, gpu_slice("a", *FOUR), claim("mine", request()), pod("asks", device_claims=("ns/mine",))],
            (HeldPart("claimed", f"{DRIVER}/a/gpu-0"),),
            f"with device {DRIVER}/a/gpu-0.",
        ),
    ],
    ids=["instance", "share", "share of an unknown card", "claim"],
)
def test_what_a_pod_has_or_gets(reported: list[Pod | Claim], parts: tuple[HeldPart, ...], text: str) -> None:
    answer = ask(cluster(*reported))
    assert (answer.state in ("Bound", "Placed"), answer.parts) == (True, parts)
    assert text in printed(answer)
