# SPDX-License-Identifier: Apache-2.0
"""Policies about the network of GPU pods, and about collectives."""

from __future__ import annotations

from dovetail.advice.lint.cel import (
    GPU_NAME,
    Cel,
    asked,
    counted,
    each,
    env,
    finding,
    gpus,
    matches,
    only,
    texts,
    words,
)
from dovetail.advice.lint.rules.network import FOREIGN, variables
from dovetail.core.devices import products

_NAME, _VALUE = "e.?name.orValue('')", "e.?value.orValue('')"
_OTHERS = (
    "(c.limits.map(n, n) + c.requests.map(n, n)).filter(n, !"
    + matches("n", GPU_NAME)
    + " && !"
    + matches("n", "^(cpu|memory|ephemeral-storage|hugepages-|pods)")
    + ")"
)
_RDMA_WORDS = "(?i)rdma|infiniband|hca|roce|mlnx|hostdev|sriov"
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_IS_ON = r"^\s*-*[0-9]*[1-9][0-9]*\s*$"
_ONLY_ETH0 = (
    "!(p.spec.?hostNetwork.orValue(false) == true || size(p.spec.?resourceClaims.orValue([])) > 0 || "
    "[object.?metadata.?annotations.orValue({}), p.meta.?annotations.orValue({})].exists(a, a.exists(k, "
    + matches("k", "(?i)network|cni|interface")
    + f")) || p.containers.exists(c, size({_OTHERS}) > 0))"
)
_ENTRIES = f"({_VALUE}.startsWith('=') ? {_VALUE}.substring(1) : {_VALUE}).split(',').map(i, i.trim().split(':')[0])"
_HAS_INTERFACE = (
    f"{_VALUE}.contains('$(') || {_VALUE}.startsWith('^') || {_ENTRIES}.exists(i, {_VALUE}.startsWith('=') || "
    f"!{_NAME}.startsWith('NCCL_') ? i in ['eth0', 'lo'] : 'eth0'.startsWith(i) || 'lo'.startsWith(i))"
)
_WITHOUT_NVLINK = "|".join(
    sorted(
        name.casefold()
        for one in products.PRODUCTS
        if one.reach in (products.NONE, products.BRIDGE)
        for name in (one.model, *one.names)
    )
)
_SELECTED = "p.spec.?nodeSelector[?'nvidia.com/gpu.product'].orValue('')"
_DISABLED = (
    (
        f"{_NAME} == 'NCCL_P2P_DISABLE' && {gpus('c')} > 1 && !"
        + matches(_SELECTED, f"^(?i:{_WITHOUT_NVLINK})(-SHARED|-MIG-.*)?$"),
        f"{_NAME} + ' disables peer-to-peer access between ' + string({gpus('c')}) + ' GPUs: remove it'",
    ),
    (
        f"{_NAME} == 'NCCL_SHM_DISABLE' && {gpus('c')} > 1",
        f"{_NAME} + ' moves the traffic of ' + string({gpus('c')}) + ' GPUs to the network: remove it, and mount a "
        "memory volume at /dev/shm'",
    ),
    (
        f"{_NAME} == 'NCCL_IB_DISABLE' && {_OTHERS}.exists(n, {matches('n', _RDMA_WORDS)})",
        f"{_NAME} + ' disables the RDMA devices that the container requests: remove it'",
    ),
)
_VARIABLES = only(
    "p.uses",
    each(
        "p.containers",
        "c",
        env(
            "c",
            "e",
            finding(
                f"{_NAME} in {texts(_INTERFACES)} && {_VALUE} != '' && !({_HAS_INTERFACE}) && {_ONLY_ETH0}",
                f"c.at + '.env[' + {_NAME} + ']: a pod without hostNetwork has eth0, not ' + {_VALUE} + ': write "
                f"eth0, or "
                "remove it'",
            )
            + " + "
            + only(
                matches(_VALUE, _IS_ON),
                " + ".join(
                    finding(condition, f"c.at + '.env[' + {_NAME} + ']: '", what) for condition, what in _DISABLED
                ),
            ),
        ),
    ),
)
_KNOWN_NAMES = only(
    "p.uses",
    each(
        "p.all",
        "c",
        f"c.c.?env.orValue([]).map(e, {_NAME}).filter(v, v.startsWith('NCCL_') && !"
        + matches("v", f"^({'|'.join(FOREIGN)})")
        + f" && !(v in {texts(variables())})).map(v, c.at + '.env[' + v + ']: NCCL has no variable ' + v + ': write "
        f"the "
        "right name, or remove it')",
    ),
)

_NEEDS_HOST = " || ".join(
    (
        f"p.containers.map(c, c.gpus.map(n, {counted(asked('c', 'n'))}).filter(g, g > 0).sum()).sum() > 1",
        "p.spec.?hostPID.orValue(false) == true",
        "p.spec.?hostIPC.orValue(false) == true",
        "size(p.spec.?resourceClaims.orValue([])) > 0",
        f"p.all.exists(c, size({_OTHERS}) > 0 || c.c.?securityContext.?privileged.orValue(false) == true || "
        "size(c.c.?securityContext.?capabilities.?add.orValue([])) > 0 || "
        "c.c.?ports.orValue([]).exists(o, o.?hostPort.orValue(0) != 0) || c.c.?env.orValue([]).exists(e, "
        + matches(_NAME, "^(NCCL_|GLOO_|UCX_|NVSHMEM_|FI_|OMPI_|MASTER_ADDR)")
        + "))",
    )
)
_DNS = "p.spec.?dnsPolicy.orValue('') in ['', 'ClusterFirst']"
_HOST_NETWORK = only(
    "p.uses && p.spec.?hostNetwork.orValue(false) == true",
    "("
    + finding(
        _DNS,
        "p.at + 'spec.dnsPolicy: with hostNetwork ClusterFirst uses the DNS of the node: write "
        "ClusterFirstWithHostNet'",
    )
    + " + "
    + finding(f"!({_NEEDS_HOST})", "p.at + 'spec.hostNetwork: nothing in the pod needs the host network: remove it'")
    + ")",
)

_COLLECTIVE = (
    r"--nproc[-_]per[-_]node[ =]+([02-9A-Za-z_]|1\w)\w*|--tensor-parallel-size[ =]+([02-9]|1\d)\d*|--multi[-_]gpu\b|"
    r"(^|\s)(mpirun|mpiexec|horovodrun|all_reduce_perf|deepspeed)(\s|$)"
)
_MIG = "c.gpus.filter(n, n.startsWith('nvidia.com/mig-'))"
_OF_MIG = each(
    "p.containers",
    "c",
    finding(
        f"{_MIG}.map(n, {counted(asked('c', 'n'))}).sum() > 1 && {matches(words('c'), _COLLECTIVE)}",
        "c.at + '.resources: the program needs peer-to-peer access, which MIG devices do not have: request "
        "nvidia.com/gpu'",
    ),
)
_LOCKS = "c.c.?securityContext.?capabilities.?add.orValue([]).exists(a, a in ['IPC_LOCK', 'ALL'])"
_RDMA = only(
    "p.uses",
    each(
        "p.containers",
        "c",
        f"(c.c.?securityContext.?privileged.orValue(false) == true || {_LOCKS} ? [] : "
        "(c.limits.map(n, n) + c.requests.filter(n, !(n in c.limits))).filter(n, n.startsWith('rdma/') && n != "
        "'rdma/'))"
        ".map(n, c.at + '.resources: ' + n + ' needs the capability IPC_LOCK: add it, unless the container runtime "
        "raises RLIMIT_MEMLOCK')",
    ),
)

POLICIES = {
    "G21": Cel(_KNOWN_NAMES),
    "G22": Cel(_VARIABLES, omits="the GPU models of the nodes: NVLink is known from the node selector alone"),
    "G23": Cel(_HOST_NETWORK),
    "G27": Cel(_OF_MIG),
    "G39": Cel(_RDMA, omits="the RDMA devices of the nodes, and variables that choose one: only a missing IPC_LOCK"),
}
