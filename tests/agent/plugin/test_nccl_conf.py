# SPDX-License-Identifier: Apache-2.0
"""Which NICs a container's /etc/nccl.conf names."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dovetail.agent.cdi import Edits
from dovetail.agent.config import Config
from dovetail.agent.machine.host import Host, HostNic
from dovetail.agent.machine.sysfs import Hca
from dovetail.agent.plugin.nccl_conf import CONF, NcclFiles, text_for
from dovetail.agent.plugin.offers import offers
from dovetail.agent.plugin.server import Answers
from dovetail.core.devices.layout import PXB, SYS, UNKNOWN
from tests.agent.agents import host, no_edits, no_mps, uuid


def nic(name: str, near: tuple[int, ...], speed_mbps: int = 50_000, *, rdma: bool = True) -> HostNic:
    """Close to these of four GPUs."""
    levels = tuple(PXB if gpu in near else SYS for gpu in range(4))
    return HostNic(name, f"ib-{name}", "", "", 0, speed_mbps, rdma, levels)


def machine(*nics: HostNic, down: tuple[str, ...] = ()) -> Host:
    hcas = [Hca(one.name, "", "15b3", "1021", "mlx5_core", 0, one.name not in down) for one in nics if one.rdma]
    return replace(host(4), nics=nics, hcas=tuple(hcas))


FOUR = (nic("mlx5_0", (0,)), nic("mlx5_1", (1,)), nic("mlx5_2", (2,)), nic("mlx5_3", (3,)))


def named(found: Host, *gpus: int) -> list[str]:
    text = text_for(found, [uuid(gpu) for gpu in gpus])
    if not text:
        return []
    comment, line = text.splitlines()
    # NCCL takes a line for a variable where it has a `=`.
    assert comment.startswith("#") and "=" not in comment
    variable, _, value = line.partition("=")
    assert variable == "NCCL_IB_HCA" and value[0] == "="
    return value[1:].split(",")


def test_a_container_uses_the_nics_beside_its_gpus() -> None:
    assert named(machine(*FOUR), 1, 3) == ["mlx5_1", "mlx5_3"]
    assert named(machine(*FOUR), 0, 1, 2, 3) == [one.name for one in FOUR]


def test_slow_nics_and_those_without_rdma_are_left_out() -> None:
    management = nic("mlx5_bond_0", (0, 1, 2, 3), 3_125)
    ethernet = nic("ens5", (0,), 50_000, rdma=False)
    assert named(machine(management, ethernet, *FOUR), 0) == ["mlx5_0"]


def test_a_nic_that_is_down_is_replaced_by_the_next_nearest() -> None:
    assert named(machine(*FOUR, down=("mlx5_0",)), 0) == ["mlx5_1", "mlx5_2", "mlx5_3"]


@pytest.mark.parametrize(
    "found",
    [machine(), machine(*FOUR, down=tuple(one.name for one in FOUR)), machine(nic("a", (0,), 0), FOUR[0])],
    ids=["no NIC", "all down", "a rate is not known"],
)
def test_nothing_is_stated_where_it_is_not_known(found: Host) -> None:
    assert named(found, 0) == []


def test_a_distance_that_is_not_known_is_the_farthest() -> None:
    far = replace(FOUR[1], levels=(UNKNOWN,) * 4)
    assert named(machine(far, FOUR[0]), 0) == ["mlx5_0"]


def test_files_are_of_their_text_and_stay(tmp_path: Path) -> None:
    files = NcclFiles(tmp_path / "nccl")
    (first,), (second,) = (files.edits(machine(*FOUR), [uuid(gpu)]).mounts for gpu in (0, 1))
    assert (first.container_path, "ro" in first.options) == (CONF, True)
    assert Path(first.host_path).read_text() == text_for(machine(*FOUR), [uuid(0)])
    assert first != second
    (again,) = files.edits(machine(*FOUR), [uuid(0)]).mounts
    assert again == first and len(list((tmp_path / "nccl").iterdir())) == 2


def test_a_folder_that_cannot_be_written_costs_no_pod(tmp_path: Path) -> None:
    (tmp_path / "nccl").write_text("")
    assert NcclFiles(tmp_path / "nccl").edits(machine(*FOUR), [uuid(0)]) == Edits()


@pytest.mark.parametrize("on", [True, False])
def test_whole_gpus_get_the_file_where_the_configuration_asks_for_it(tmp_path: Path, on: bool) -> None:
    config, found = Config(nccl_conf=on), machine(*FOUR)
    answers = Answers(config, no_edits, no_mps)
    answers.nccl = lambda uuids: NcclFiles(tmp_path).edits(found, uuids)
    (offer,) = offers(found, config, (), {})[0].values()
    reply = answers.allocate(offer, [uuid(0), uuid(2)])
    assert [(one.container_path, one.read_only) for one in reply.mounts] == [(CONF, True)] * on
    assert "NCCL_IB_HCA" not in reply.envs
