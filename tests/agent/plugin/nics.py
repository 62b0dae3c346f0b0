# SPDX-License-Identifier: Apache-2.0
"""Machines with four GPUs and these NICs, for tests of what containers get for them."""

from __future__ import annotations

from msgspec.structs import replace

from dovetail.agent.machine.host import Host, HostNic
from dovetail.agent.machine.sysfs import Hca, HostInterface
from dovetail.core.devices.layout import PXB, SYS
from tests.agent.agents import host


def nic(name: str, near: tuple[int, ...], speed_mbps: int = 50_000, *, rdma: bool = True) -> HostNic:
    """Close to these of four GPUs."""
    levels = tuple(PXB if gpu in near else SYS for gpu in range(4))
    return HostNic(name, f"ib-{name}", "", "", 0, speed_mbps, rdma, levels)


def machine(*nics: HostNic, down: tuple[str, ...] = ()) -> Host:
    hcas = [
        Hca(
            one.name, "", "15b3", "1021", "mlx5_core", 0, one.name not in down, (one.interface,),
            device_nodes=(f"/dev/infiniband/uverbs{at}",),
            active_ports=("1",) if one.name not in down else (),
        )
        for at, one in enumerate(nics)
        if one.rdma
    ]  # fmt: skip
    interfaces = tuple(HostInterface(one.interface, f"pci-{one.name}", one.name not in down) for one in nics)
    return replace(host(4), nics=nics, hcas=tuple(hcas), interfaces=interfaces)


FOUR = (nic("mlx5_0", (0,)), nic("mlx5_1", (1,)), nic("mlx5_2", (2,)), nic("mlx5_3", (3,)))
