# SPDX-License-Identifier: Apache-2.0
"""What GPUDirect RDMA lacks on nodes: NICs that copy through the host's memory although they could reach the GPUs.

The agent examines the node and lists it in `status.gpuDirect` of the GPUNode. What the agent could not read is in
`status.unread`, and there is no finding of it. Nodes with equal values have equal evidence.
"""

from __future__ import annotations

from functools import partial

from dovetail.advice.doctor.records import Check, ClusterFacts, Problems, some

_FINDINGS = (
    ("no-peer-memory", "NoPeerMemory", "NICs cannot reach the memory of GPUs: without nvidia_peermem and DMA-BUF",
     "modprobe nvidia-peermem (GPU Operator: driver.rdma.enabled=true); or NVIDIA's open kernel modules on Linux 5.12 "
     "or later"),
    ("acs", "AcsRedirects", "bridges redirect the traffic between GPUs and NICs to the CPU (ACS)",
     "turn ACS off in the firmware's setup, or boot with pci=disable_acs_redir= and the addresses of these bridges; "
     "until the next boot: setpci -s BRIDGE ECAP_ACS+0x6.w=0000"),
    ("iommu", "IommuTranslates", "the IOMMU translates the addresses of NICs",
     "boot with iommu=pt (Arm: iommu.passthrough=1), or without IOMMU"),
    ("relaxed-ordering", "StrictOrdering", "PCIe relaxed ordering is off for NICs",
     "turn relaxed ordering on in the firmware's setup; until the next boot: setpci -s NIC CAP_EXP+0x8.w=0x10:0x10"),
    ("memory-lock", "MemoryLockLimited", "containers may lock little memory, and RDMA locks its buffers",
     "add the capability IPC_LOCK to the containers, or set LimitMEMLOCK=infinity for the service of the container "
     "runtime and restart it"),
    ("nic-address", "NoNicAddress", "RoCE NICs have no IP address: their packets reach no other network",
     "give the interfaces of these NICs addresses; where pods have interfaces of their own on them (macvlan, SR-IOV), "
     "their addresses count instead"),
)  # fmt: skip


def _lacking(code: str, fix: str, seen: ClusterFacts) -> Problems:
    for node, status in sorted((seen.gpu_nodes or {}).items()):
        if values := [f"{one.file}: {one.value}" for one in status.gpu_direct if one.code == code]:
            yield f"node/{node}", f"status.gpuDirect of the GPUNode: {some(values)}", fix


CHECKS = tuple(
    Check(f"gpudirect/{name}", "warning", wrong, ("gpu_nodes",), partial(_lacking, code, fix))
    for name, code, wrong, fix in _FINDINGS
)
