# SPDX-License-Identifier: Apache-2.0
"""Shared RDMA resources: which HCAs are selected, what the kubelet hears, and what a container gets."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from dovetail.agent.config import Config
from dovetail.agent.config_values import RdmaResource
from dovetail.agent.machine.host import Host
from dovetail.agent.machine.sysfs import Hca
from dovetail.agent.plugin.rdma import rdma_offers
from dovetail.agent.plugin.server import Answers
from tests.agent.agents import GPU, host, no_edits, no_mps, running, uuid
from tests.agent.fake_kubelet import pod

NAME = "rdma/hca_a"
COMMON = "/dev/infiniband/rdma_cm"


def nodes(i: int) -> tuple[str, ...]:
    return tuple(f"/dev/infiniband/{kind}{i}" for kind in ("issm", "umad", "uverbs"))


HCAS = tuple(
    Hca(
        name=f"mlx5_{i}",
        bus_id=f"0000:{i:02x}:00.0",
        vendor="15b3",
        device="1021" if i < 3 else "101d",
        driver="mlx5_core",
        numa=i // 2,
        active=i != 1,
        interfaces=(f"ib{i}",),
        link_types=("infiniband",) if i < 3 else ("ether",),
        device_nodes=(*nodes(i), COMMON),
    )
    for i in range(4)
)
MACHINE = replace(host(4), hcas=HCAS)


def resource(**selectors: tuple[str, ...]) -> Config:
    return Config(rdma=(RdmaResource(NAME, 3, selectors),))


@pytest.mark.parametrize(
    ("selectors", "selected", "numa"),
    [
        ({"vendors": ("15b3",)}, (0, 1, 2, 3), None),
        ({"ifNames": ("ib0", "ib1", "ib9")}, (0, 1), 0),
        ({"linkTypes": ("ether",)}, (3,), 1),
        ({"deviceIDs": ("1021",), "ifNames": ("ib2", "ib3")}, (2,), 1),
        ({"drivers": ("mlx4_core",)}, (), None),
    ],
)
def test_selectors_are_joined_and_their_values_are_choices(
    selectors: dict[str, tuple[str, ...]], selected: tuple[int, ...], numa: int | None
) -> None:
    offer = rdma_offers(MACHINE, resource(**selectors))[NAME]
    assert {*offer.device_nodes} == {node for i in selected for node in (*nodes(i), COMMON)}
    assert len({*offer.device_nodes}) == len(offer.device_nodes)
    assert [(one.id, one.numa) for one in offer.devices.values()] == [(str(n), numa) for n in range(3) if selected]


def test_a_resource_is_unhealthy_while_no_port_of_it_is_active() -> None:
    def healthy(*names: str) -> set[bool]:
        return {one.healthy for one in rdma_offers(MACHINE, resource(ifNames=names))[NAME].devices.values()}

    assert (healthy("ib1"), healthy("ib0", "ib1")) == ({False}, {True})


def test_an_hca_without_character_devices_is_not_offered() -> None:
    bare = Host(hcas=(replace(HCAS[0], device_nodes=()),))
    assert not rdma_offers(bare, resource(vendors=("15b3",)))[NAME].devices


async def test_a_container_gets_the_devices_of_all_selected_hcas_and_nothing_else() -> None:
    offer = rdma_offers(MACHINE, resource(ifNames=("ib0",)))[NAME]
    assert rdma_offers(MACHINE, resource(ifNames=("ib0",)), Path("/host/dev"))[NAME].device_nodes == {
        path: f"/host{path}" for path in (*nodes(0), COMMON)
    }
    found = await Answers(Config(), no_edits, no_mps).allocate(offer, ["2", "0"])
    assert [(one.host_path, one.container_path, one.permissions) for one in found.devices] == [
        (path, path, "rwm") for path in (*nodes(0), COMMON)
    ]
    assert not (found.envs or found.mounts or found.annotations or found.cdi_devices)


async def test_a_pod_has_its_chosen_gpus_beside_rdma() -> None:
    with tempfile.TemporaryDirectory(prefix="d") as place:
        async with running(Path(place), resource(ifNames=("ib0", "ib1")), MACHINE) as node:
            listed = node.kubelet.listed(NAME)
            assert {id: [one.ID for one in device.topology.nodes] for id, device in listed.items()} == {
                str(n): [0] for n in range(3)
            }
            held = await node.run(pod("a", {GPU: 2, NAME: 1}, devices="1,3"))
            assert held[GPU] == {uuid(1), uuid(3)} and len(held[NAME]) == 1
            await node.settled(lambda: all(p.held for p in node.chosen.pods))
            assert node.plugins.differences == ()
            node.plugins.fence(("1",))
            await node.plugins.update(replace(MACHINE, hcas=HCAS[1:]), ())
            await node.settled(lambda: {one.health for one in node.kubelet.listed(NAME).values()} == {"Unhealthy"})
            assert all(one.topology.nodes for one in node.kubelet.listed(NAME).values())
