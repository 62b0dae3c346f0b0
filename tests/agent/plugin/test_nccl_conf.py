# SPDX-License-Identifier: Apache-2.0
"""Which NICs a container's /etc/nccl.conf names."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dovetail.agent.cdi import Edits
from dovetail.agent.machine.host import Host
from dovetail.agent.plugin.nccl_conf import CONF, NcclFiles, text_for
from dovetail.core.devices.layout import UNKNOWN
from tests.agent.agents import uuid
from tests.agent.plugin.nics import FOUR, machine, nic


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
