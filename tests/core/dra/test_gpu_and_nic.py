# SPDX-License-Identifier: Apache-2.0
"""One claim joins GPUs of NVIDIA's driver and NICs of DRANET by the PCIe root that both publish."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from benchmarks.core_speed import cube_mesh
from dovetail.core.devices.layout import Layout
from dovetail.core.dra.kinds import BUS_ID
from dovetail.core.dra.types import ClaimSpec, Constraint, DeviceClass, DeviceTaint
from tests.core.dra.device_worlds import World, ask, claim, device, pool

ROOT = "resource.kubernetes.io/pcieRoot"
ROOTS = 4
MESH = cube_mesh()
TOGETHER = Constraint(match=ROOT)


def at_root(number: int, kind: str) -> tuple[tuple[str, str], ...]:
    return (("driver/kind", kind), (ROOT, f"pci0000:{number:02x}"))


def world(*names: str, gpus: int = 2, nics: int = 2) -> World:
    """Nodes with so many GPUs and NICs below each root. Their numbers do not show what is below one root."""
    made = World()
    for kind in ("gpu", "nic"):
        made.claims.put_class(DeviceClass(kind, (f"driver/kind~{kind}",)))
    for name in names:
        made.node(name)
        cards = [device(f"gpu-{i}", attributes=at_root(i % ROOTS, "gpu")) for i in range(gpus * ROOTS)]
        ports = [device(f"nic-{i}", attributes=at_root(i // nics, "nic")) for i in range(nics * ROOTS)]
        made.claims.put_slice(pool(name, *cards))
        made.claims.put_slice(pool(f"{name}-nics", *ports, node=name, driver="dra.net"))
    return made


def joined(gpus: int = 1, nics: int = 1) -> ClaimSpec:
    card = ask(gpus, name="gpu")
    return claim(card, ask(nics, name="nic", device_class="nic"), constraints=[TOGETHER])


def roots_of(found: World, node: str, spec: ClaimSpec) -> list[int]:
    """The roots of the devices that a new pod gets, the GPUs first."""
    (grant,) = found.hold(node, found.pod(spec))
    names = sorted(one.device for one in grant.allocation.grants)
    return [int(name[4:]) % ROOTS if name.startswith("gpu") else int(name[4:]) // 2 for name in names]


def test_the_nic_is_below_the_root_of_the_gpus() -> None:
    node = world("n1")
    for _ in range(4):
        assert len(set(roots_of(node, "n1", joined(2, 2)))) == 1
    assert not node.fits("n1", joined())


def test_a_claim_for_all_gpus_pairs_each_with_a_nic_of_its_own_root() -> None:
    pairs = [Constraint((f"g{i}", f"n{i}"), match=ROOT) for i in range(ROOTS)]
    apart = Constraint(tuple(f"g{i}" for i in range(ROOTS)), distinct=ROOT)
    cards = [ask(1, name=f"g{i}") for i in range(ROOTS)]
    ports = [ask(1, name=f"n{i}", device_class="nic") for i in range(ROOTS)]
    node = world("n1")
    assert Counter(roots_of(node, "n1", claim(*cards, *ports, constraints=[*pairs, apart]))) == dict.fromkeys(
        range(4), 2
    )


def test_a_root_without_a_nic_is_left_to_others() -> None:
    node = world("n1")
    (first,) = {*roots_of(node, "n1", joined(1, 2))}
    # A GPU of that root is left, but no NIC.
    others = {root for _ in range(6) for root in roots_of(node, "n1", joined())}
    assert others == {0, 1, 2, 3} - {first}
    assert not node.fits("n1", joined())
    assert node.fits("n1", claim(ask(1)))


@pytest.mark.parametrize("seed", range(4))
def test_of_200_jobs_each_fits_exactly_where_a_root_has_both(seed: int) -> None:
    """Jobs of 1 or 2 GPUs and NICs come and go; what is free below each root is counted beside."""
    dice = random.Random(seed)
    names = [f"n{i}" for i in range(6)]
    nodes = world(*names)
    free = {(name, root): [2, 2] for name in names for root in range(ROOTS)}
    held = []
    placed = 0
    for _ in range(200):
        gpus, nics = dice.choice(((1, 1), (2, 1), (2, 2)))
        for name in dice.sample(names, len(names)):
            possible = any(free[name, root][0] >= gpus and free[name, root][1] >= nics for root in range(ROOTS))
            assert nodes.fits(name, joined(gpus, nics)) == possible
            if possible:
                grants = nodes.hold(name, nodes.pod(joined(gpus, nics)))
                devices = [one.device for one in grants[0].allocation.grants]
                roots = {int(d[4:]) % ROOTS if d.startswith("gpu") else int(d[4:]) // 2 for d in devices}
                (root,) = roots
                free[name, root][0] -= gpus
                free[name, root][1] -= nics
                held.append((grants, name, root, gpus, nics))
                placed += 1
                break
        while held and dice.random() < 0.45:
            grants, name, root, gpus, nics = held.pop(dice.randrange(len(held)))
            nodes.claims.release(grants)
            free[name, root][0] += gpus
            free[name, root][1] += nics
    assert placed > 100
    assert nodes.claims.check() == []


@pytest.mark.parametrize("seed", range(4))
def test_where_nics_are_scarce_a_pair_is_found_whenever_one_is_free(seed: int) -> None:
    """Two of the four roots have one NIC, each root two GPUs. Claims of a pair, and of a GPU alone, come and go."""
    dice = random.Random(seed)
    nodes, free, held = World(), dict[str, set[str]](), []
    for kind in ("gpu", "nic"):
        nodes.claims.put_class(DeviceClass(kind, (f"driver/kind~{kind}",)))
    for name in ("n1", "n2", "n3"):
        nodes.node(name)
        cards = [device(f"gpu-{i}", attributes=at_root(i % ROOTS, "gpu")) for i in range(2 * ROOTS)]
        ports = [device(f"nic-{i}", attributes=at_root(i, "nic")) for i in range(2)]
        nodes.claims.put_slice(pool(name, *cards))
        nodes.claims.put_slice(pool(f"{name}-nics", *ports, node=name, driver="dra.net"))
        free[name] = {one.name for one in (*cards, *ports)}
    placed: Counter[str] = Counter()
    for _ in range(200):
        kind, spec = dice.choice((("pair", joined()), ("gpu", claim(ask(1)))))
        for name in dice.sample(sorted(free), len(free)):
            left = free[name]
            pairs = [root for root in (0, 1) if f"nic-{root}" in left and {f"gpu-{root}", f"gpu-{root + ROOTS}"} & left]
            possible = bool(pairs) if kind == "pair" else any(one.startswith("gpu") for one in left)
            assert nodes.fits(name, spec) == possible
            if possible:
                grants = nodes.hold(name, nodes.pod(spec))
                taken = {one.device for one in grants[0].allocation.grants}
                assert taken <= left and len({int(one[4:]) % ROOTS for one in taken}) == 1
                left -= taken
                held.append((grants, name, taken))
                placed[kind] += 1
                break
        while held and dice.random() < 0.45:
            grants, name, taken = held.pop(dice.randrange(len(held)))
            nodes.claims.release(grants)
            free[name] |= taken
    assert min(placed["pair"], placed["gpu"]) > 40
    assert nodes.claims.check() == []


def scarce(layout: Layout | None = None) -> World:
    """A node with two GPUs at each root, one NIC at the first two, and a tainted one at the third. No claim has asked
    for a pair yet."""
    made = World()
    for kind in ("gpu", "nic"):
        made.claims.put_class(DeviceClass(kind, (f"driver/kind~{kind}",)))
    made.node("n1", layout)
    cards = [
        device(f"gpu-{i}", attributes=(*at_root(i // 2, "gpu"), (BUS_ID, f"0000:{i + 1:02x}:00.0"))) for i in range(8)
    ]
    down = (DeviceTaint("dra.net/down", "", "NoSchedule"),)
    ports = [device(f"nic-{i}", attributes=at_root(i, "nic"), taints=down if i == 2 else ()) for i in range(3)]
    made.claims.put_slice(pool("n1", *cards))
    made.claims.put_slice(pool("n1-nics", *ports, node="n1", driver="dra.net"))
    return made


def numbers(found: World, *specs: ClaimSpec) -> list[int]:
    grants = found.hold("n1", found.pod(*specs))
    return sorted(int(one.device[4:]) for each in grants for one in each.allocation.grants)


@pytest.mark.parametrize("layout", [None, MESH])
def test_pods_without_nics_leave_the_gpus_beside_scarce_ones(layout: Layout | None) -> None:
    node = scarce(layout)
    node.pod(joined())
    alone = [numbers(node, claim(ask(1))) for _ in range(6)]
    # First those without a usable NIC; then one of each root, as the other is enough for the NIC.
    assert sorted(gpu for (gpu,) in alone[:4]) == [4, 5, 6, 7]
    assert {gpu // 2 for (gpu,) in alone[4:]} == {0, 1}
    for _ in range(2):
        assert len(set(roots_at_two(node, joined()))) == 1
    assert not node.fits("n1", claim(ask(1)))


def roots_at_two(found: World, spec: ClaimSpec) -> list[int]:
    (grant,) = found.hold("n1", found.pod(spec))
    names = [one.device for one in grant.allocation.grants]
    return [int(name[4:]) // 2 if name.startswith("gpu") else int(name[4:]) for name in names]


def test_the_bandwidth_between_gpus_comes_first() -> None:
    """0-3, 0-4, 1-2, 1-5, 2-6, 3-7, 4-7 and 5-6 have two NVLinks: of these pairs two have no NIC beside them."""
    node = scarce(MESH)
    node.pod(joined())
    assert numbers(node, claim(ask(2))) in ([4, 7], [5, 6])
    assert numbers(node, claim(ask(2))) in ([4, 7], [5, 6])
    # Only pairs of a GPU at the first root and one at the second are left.
    assert numbers(node, claim(ask(2))) in ([0, 3], [1, 2])


def test_nics_without_gpus_are_taken_first_for_pods_without_gpus() -> None:
    made = World()
    for kind in ("gpu", "nic"):
        made.claims.put_class(DeviceClass(kind, (f"driver/kind~{kind}",)))
    made.node("n1")
    made.claims.put_slice(pool("n1", device("gpu-0", attributes=at_root(0, "gpu"))))
    ports = [device(f"nic-{i}", attributes=at_root(i, "nic")) for i in range(2)]
    made.claims.put_slice(pool("n1-nics", *ports, node="n1", driver="dra.net"))
    made.pod(joined())
    assert numbers(made, claim(ask(1, device_class="nic"))) == [1]


@pytest.mark.parametrize("layout", [None, MESH])
def test_only_claims_that_are_there_decide_and_not_what_was_asked_before(layout: Layout | None) -> None:
    """A restart, and the beginning of a recording, read the claims anew, and ask for none of those that run."""
    node = scarce(layout)
    (usual,) = numbers(node, claim(ask(1)))
    assert usual in (0, 1, 2, 3)
    # A question about a claim that is not there.
    node = scarce(layout)
    assert node.fits("n1", joined())
    assert numbers(node, claim(ask(1))) == [usual]
    node = scarce(layout)
    node.pod(joined())
    assert numbers(node, claim(ask(1))) > [3]
    node = scarce(layout)
    (key,) = node.pod(joined()).device_claims
    node.claims.remove_claim(key)
    assert numbers(node, claim(ask(1))) == [usual]


def test_gpus_of_several_requests_are_the_best_linked_ones_together() -> None:
    """GPUs 1 and 2 have NVLinks and NICs beside them, 7 has neither."""
    node = scarce(MESH)
    for taken in (0, 3, 4, 5, 6):
        assert numbers(node, claim(ask(1, f"{BUS_ID}~0000:{taken + 1:02x}:00.0"))) == [taken]
    assert node.fits("n1", *node.claims.wanted(node.pod(joined())))
    assert numbers(node, claim(ask(1, name="a"), ask(1, name="b"))) == [1, 2]
