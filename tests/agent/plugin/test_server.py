# SPDX-License-Identifier: Apache-2.0
"""What Allocate puts into a container, by the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dovetail.agent.apis import deviceplugin_pb2 as wire
from dovetail.agent.cdi import DeviceNode, Edits, Mount
from dovetail.agent.config import Config, Shared
from dovetail.agent.plugin.offers import ResourceOffer, offers
from dovetail.agent.plugin.server import Answers, RequestRefused
from tests.agent.agents import GPU, host, mig_uuid, no_edits, no_mps, unhealthy, uuid

SHARED = f"{GPU}.shared"


def edits(uuids: Sequence[str]) -> Edits:
    return Edits(
        device_nodes=(DeviceNode("/dev/nvidiactl"), DeviceNode("/dev/nvidia1", "/run/dev/nvidia1", permissions="rwm"))
    )


def mps(resource: str, uuids: Sequence[str]) -> Edits:
    return Edits(
        env=(("CUDA_MPS_PIPE_DIRECTORY", f"/mps/{resource}/pipe"), ("FOR", ",".join(uuids))),
        mounts=(Mount("/run/mps/shm", "/dev/shm", ("rw",)), Mount("/run/mps", "/mps")),
    )


def offered(config: Config, unhealthy: Sequence[str] = (), **options: Any) -> ResourceOffer:
    (offer,) = offers(host(4, **options), config, unhealthy, {})[0].values()
    return offer


def answer(config: Config, ids: Sequence[str], **options: Any) -> wire.ContainerAllocateResponse:
    return asyncio.run(Answers(config, edits, mps).allocate(offered(config, **options), ids))


def test_by_default_devices_are_passed_by_cdi_alone_whatever_the_image_sets() -> None:
    found = answer(Config(), [uuid(2), uuid(1)])
    assert [one.name for one in found.cdi_devices] == [f"dovetail.dev/gpu={uuid(i)}" for i in (1, 2)]
    assert dict(found.envs) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert not (found.mounts or found.devices or found.annotations)


def test_envvar_names_the_devices() -> None:
    found = answer(Config(device_list_strategies=("envvar",)), [uuid(2), uuid(1)])
    assert dict(found.envs) == {"NVIDIA_VISIBLE_DEVICES": f"{uuid(1)},{uuid(2)}"}
    assert not found.cdi_devices


def test_index_names_them_by_index() -> None:
    by_index = Config(device_list_strategies=("envvar",), device_id_strategy="index", mig_strategy="mixed")
    assert answer(by_index, [uuid(3), uuid(0)]).envs["NVIDIA_VISIBLE_DEVICES"] == "0,3"
    mig = {card: [("1g.5gb", start, 1) for start in range(2)] for card in range(4)}
    found = answer(by_index, [mig_uuid(2, 1)], mig=mig)
    assert found.envs["NVIDIA_VISIBLE_DEVICES"] == "2:1"


def test_volume_mounts_name_them_by_mounts() -> None:
    found = answer(Config(device_list_strategies=("volume-mounts",)), [uuid(1)])
    assert found.envs["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    (mount,) = found.mounts
    assert (mount.host_path, mount.container_path) == ("/dev/null", f"/var/run/nvidia-container-devices/{uuid(1)}")


def test_cdi_annotations_are_valid_keys_and_neutralise_too() -> None:
    found = answer(Config(device_list_strategies=("cdi-annotations",)), [uuid(1), uuid(0)])
    assert dict(found.annotations) == {
        "cdi.k8s.io/dovetail_gpu": f"dovetail.dev/gpu={uuid(0)},dovetail.dev/gpu={uuid(1)}"
    }
    assert found.envs["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_strategies_add_up() -> None:
    found = answer(Config(device_list_strategies=("cdi-cri", "envvar"), gds=True, mofed=True), [uuid(1)])
    assert len(found.cdi_devices) == 1
    names = {"NVIDIA_VISIBLE_DEVICES": uuid(1), "NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"}
    assert dict(found.envs) == names


def test_device_nodes_are_passed_if_configured() -> None:
    nodes = answer(Config(pass_device_specs=True), [uuid(1)]).devices
    assert [(n.container_path, n.host_path, n.permissions) for n in nodes] == [
        ("/dev/nvidiactl", "/dev/nvidiactl", "rw"),
        ("/dev/nvidia1", "/run/dev/nvidia1", "rwm"),
    ]


def test_replicas_of_one_card_are_one_device() -> None:
    shared = Config(sharing={GPU: Shared("time-slicing", 2, False, SHARED)})
    found = answer(shared, [f"{uuid(1)}::1", f"{uuid(1)}::0", f"{uuid(0)}::1"])
    assert [one.name for one in found.cdi_devices] == [f"dovetail.dev/gpu={uuid(i)}" for i in (0, 1)]


def test_clients_of_mps_get_its_pipe_directory() -> None:
    shared = Config(sharing={GPU: Shared("mps", 2, True, SHARED)})
    found = answer(shared, [f"{uuid(1)}::1"])
    assert found.envs["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{SHARED}/pipe" and found.envs["FOR"] == uuid(1)
    assert [(m.container_path, m.read_only) for m in found.mounts] == [("/dev/shm", False), ("/mps", True)]


def test_more_than_one_replica_is_refused_if_so_configured() -> None:
    shared = Config(sharing={GPU: Shared("time-slicing", 2, True, SHARED)})
    assert answer(shared, [f"{uuid(1)}::1"]).cdi_devices
    with pytest.raises(RequestRefused, match="2 replicas of"):
        answer(shared, [f"{uuid(1)}::1", f"{uuid(0)}::1"])


async def test_unknown_and_unhealthy_devices_are_refused() -> None:
    answers = Answers(Config(), no_edits, no_mps)
    offer = offered(Config(), [one.uuid for one in unhealthy(2)])
    with pytest.raises(RequestRefused, match=f"{uuid(7)} is not offered as {GPU}"):
        await answers.allocate(offer, [uuid(1), uuid(7)])
    with pytest.raises(RequestRefused, match=f"{uuid(2)} is unhealthy"):
        await answers.allocate(offer, [uuid(1), uuid(2)])


@pytest.mark.parametrize("there", [True, False])
async def test_a_channel_of_imex_is_named_to_nvidias_runtime_where_the_node_has_it(there: bool) -> None:
    node = DeviceNode("/dev/nvidia-caps-imex-channels/channel0")

    def with_channel(uuids: Sequence[str]) -> Edits:
        return Edits(device_nodes=(node,) if there else ())

    for strategy, named in (
        ("envvar", {"0"}),
        ("volume-mounts", {"/var/run/nvidia-container-devices/imex/0"}),
        ("cdi-cri", set()),
    ):
        config = Config(device_list_strategies=(strategy,), imex_channels=(0,))
        found = await Answers(config, with_channel, mps).allocate(offered(config), [uuid(1)])
        channels = {found.envs[name] for name in found.envs if "IMEX" in name}
        channels |= {mount.container_path for mount in found.mounts if "imex" in mount.container_path}
        assert channels == (named if there else set())
