# SPDX-License-Identifier: Apache-2.0
"""The variables by which NCCL, UCX and NVSHMEM in a container find the interface and the NICs of their node.

Rules
- On the pod network the interface is eth0: container runtimes call it so. On the network of the node it is that of the
  configuration, else the only one that can be meant: of the PCI devices that are up and are no NICs for data, with the
  bond or bridge that it is part of instead of it. Where several can be meant, no variable names one.
- NICs for data are the RDMA NICs with an active port and the highest rate. They are named only to containers that can
  use them: those that request RDMA devices, or are privileged.
- UCX uses no device that UCX_NET_DEVICES does not list, so the interface stands behind the NICs. Alone it is listed
  only where the container certainly has no NIC: without further networks, claims, and resources that are no GPUs.
- NVSHMEM takes the NIC nearest to each GPU by itself. Which it is to take is stated only where the node has active RDMA
  NICs that are not for data: NVSHMEM_HCA_PE_MAPPING, a PE for each GPU in their order.
- A pod that sets one variable of a group (interface, NICs) decides for the group: none of them is set. NCCL and PyTorch
  derive some of them from others.
- A container with `envFrom` may set some that are not known here. The kubelet lets its own have precedence, so what
  others are derived from is set, NCCL_SOCKET_IFNAME and NCCL_IB_HCA, and the rest of the groups is left out. Where what
  is set has precedence, nothing is.
- A value of the pod that names what the node does not have is kept, and reported.

Sources: NCCL, user guide, environment variables (NCCL_SOCKET_IFNAME, NCCL_IB_HCA: `=` for whole names); NVSHMEM, API
documentation, environment variables (NVSHMEM_HCA_PE_MAPPING: `hca:port:count`, with NVSHMEM_ENABLE_NIC_PE_MAPPING);
OpenUCX, FAQ and `ucx_info -cf` (UCX_NET_DEVICES); PyTorch, torch/csrc/distributed/c10d/symm_mem/nvshmem_extension.cu
(maybe_initialize_env_vars).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from dovetail.agent.kubelet.container_networks import ContainerNetwork
from dovetail.agent.machine.host import Host
from dovetail.agent.plugin.nccl_conf import data_nics, nearest
from dovetail.core.model import GPU

SOCKET, UCX = "NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES"
HCA, HCA_LIST, HCA_MAPPING = "NCCL_IB_HCA", "NVSHMEM_HCA_LIST", "NVSHMEM_HCA_PE_MAPPING"
BOOTSTRAP, MAPS = "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "NVSHMEM_ENABLE_NIC_PE_MAPPING"
_INTERFACE_GROUP = frozenset({SOCKET, BOOTSTRAP, "NCCL_SOCKET_FAMILY"})
_NIC_GROUP = frozenset({HCA, UCX, HCA_LIST, HCA_MAPPING, MAPS, "UCX_TLS", "NCCL_IB_DISABLE"})
_OF_WHICH_OTHERS_ARE_DERIVED = (SOCKET, HCA)
POD_INTERFACE = "eth0"
_UNUSABLE = ("ovs-system",)
"""Masters that have no address themselves: the switch of Open vSwitch."""
_LONGEST_SHOWN = 80


class PassedVariable(Struct, frozen=True):
    """A variable that a container gets, and why it has this value."""

    name: str
    value: str
    why: str


class PassedEnvironment(Struct, frozen=True):
    """What a container gets, what of its own stays in force, what of that cannot be right, and what is left out as the
    container may have others that are not known."""

    passed: tuple[PassedVariable, ...] = ()
    kept: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def environment(
    host: Host,
    uuids: Sequence[str],
    network: ContainerNetwork,
    *,
    rdma: bool,
    interface: str = "",
    replaces: bool = False,
) -> PassedEnvironment:
    """The environment of a container with these GPUs. `rdma`: it can use the RDMA devices of the node. `interface` is
    that of the configuration for pods on the network of the node. `replaces`: what is set replaces variables of the
    container, and not they it."""
    own = network.own
    chosen, why = (POD_INTERFACE, "the pod network") if not network.host_network else _of_node(host, interface)
    passed = []
    if chosen and _INTERFACE_GROUP.isdisjoint(own):
        passed += [PassedVariable(SOCKET, f"={chosen}", why), PassedVariable(BOOTSTRAP, chosen, why)]
    if _NIC_GROUP.isdisjoint(own):
        beside = chosen if _INTERFACE_GROUP.isdisjoint(own) and (rdma or not _may_have_nics(network)) else ""
        passed += _nics(host, uuids, beside, rdma)
    kept = tuple(sorted(own.keys() & (_INTERFACE_GROUP | _NIC_GROUP)))
    kept_in = () if replaces else _OF_WHICH_OTHERS_ARE_DERIVED
    left_out = [one for one in passed if network.more_own and one.name not in kept_in]
    return PassedEnvironment(
        tuple(one for one in passed if one not in left_out),
        kept,
        tuple(_wrong(host, network)),
        tuple(one.name for one in left_out),
    )


def can_use_rdma(network: ContainerNetwork, resources: frozenset[str]) -> bool:
    """Whether the container has character devices of HCAs. `resources` are those that the agent offers for them."""
    requested = any(name.startswith("rdma/") or name in resources for name in network.resources)
    return network.privileged or requested


def _may_have_nics(network: ContainerNetwork) -> bool:
    """Whether others may give it NICs: by Multus, claims, or resources whose devices are not known here."""
    return network.further_networks or network.claims or bool(network.resources - {GPU})


def _of_node(host: Host, configured: str) -> tuple[str, str]:
    """The interface of the node and why it is that; "" where it is not known."""
    if configured:
        return configured, "hostInterface of the agent's configuration"
    of_data = {name for hca in data_nics(host) for name in hca.interfaces}
    up = [one for one in host.interfaces if one.bus_id and one.up]
    others = [one for one in up if one.name not in of_data]
    names = {one.master or one.name for one in others or up}
    known = {one.name: one for one in host.interfaces}
    if len(names) != 1 or names & {*_UNUSABLE}:
        return "", ""
    (name,) = names
    if name in known and known[name].above:
        return "", ""
    return name, "the only interface of the node that is up" + (" beside its NICs for data" if others != up else "")


def _nics(host: Host, uuids: Sequence[str], interface: str, rdma: bool) -> Iterator[PassedVariable]:
    if not rdma:
        if interface:
            yield PassedVariable(UCX, interface, "the container requests no RDMA devices")
        return
    ports = {hca.name: hca.active_ports[0] for hca in data_nics(host) if hca.active_ports}
    gpus = [at for at, gpu in enumerate(host.gpus) if gpu.uuid in uuids]
    near = {at: [nic.name for nic in nearest(host, at) if nic.name in ports] for at in gpus}
    names = sorted({name for found in near.values() for name in found})
    if not names:
        return
    why = "the RDMA NICs nearest to its GPUs"
    yield PassedVariable(HCA, f"={','.join(names)}", why)
    devices = [f"{name}:{ports[name]}" for name in names]
    yield PassedVariable(UCX, ",".join([*devices, *([interface] if interface else [])]), why)
    slower = {hca.name for hca in host.hcas if hca.active} - {hca.name for hca in data_nics(host)}
    if slower and all(near.values()):
        mapping = ",".join(f"{name}:{ports[name]}:{count}" for name, count in _by_pe(near))
        yield PassedVariable(
            MAPS, "1", f"{_some(sorted(slower))} of the node {'is' if len(slower) == 1 else 'are'} not for data"
        )
        yield PassedVariable(HCA_MAPPING, mapping, why)


def _by_pe(near: dict[int, list[str]]) -> list[tuple[str, int]]:
    """The NIC of each PE, with how many PEs in a row have it. Of equally near NICs that with the fewest PEs."""
    used: dict[str, int] = {}
    order = []
    for names in near.values():
        name = min(names, key=lambda one: used.get(one, 0))
        used[name] = used.get(name, 0) + 1
        order.append(name)
    return [(name, len(list(same))) for name, same in groupby(order)]


def _wrong(host: Host, network: ContainerNetwork) -> Iterator[str]:
    """What the values of the pod name and is not there. A pod on a network of its own may rename and move NICs, if it
    has further networks; then nothing is reported."""
    if network.further_networks:
        return
    interfaces = {one.name for one in host.interfaces} if network.host_network else {POD_INTERFACE, "lo"}
    hcas = {hca.name for hca in host.hcas}
    where = "the node" if network.host_network else "the pod network"
    for name, there, what in (
        (SOCKET, interfaces, f"interface of {where}"),
        (BOOTSTRAP, interfaces, f"interface of {where}"),
        (HCA, hcas, "RDMA NIC of the node"),
        (HCA_LIST, hcas, "RDMA NIC of the node"),
    ):
        value = network.own.get(name) or ""
        if there and value and not value.startswith("^") and not _matches(value, there):
            yield f"{_shown(name, value)} names no {what}: it has {_some(sorted(there))}"
    yield from _wrong_devices(network, interfaces | hcas)
    if network.own.get(HCA_LIST) and network.own.get(MAPS, "") in ("", "0"):
        yield f"{HCA_LIST} has no effect without {MAPS}=1"


def _wrong_devices(network: ContainerNetwork, there: set[str]) -> Iterator[str]:
    value = network.own.get(UCX) or ""
    named = [one.partition(":")[0] for one in value.split(",") if one]
    absent = [one for one in named if one not in there and one != "all"]
    if there and named and not value.startswith("^") and len(absent) == len(named):
        yield f"{_shown(UCX, value)} names no device that the container can have: UCX fails to start"


def _matches(value: str, there: set[str]) -> bool:
    """Whether a list names one of them: by the begin of its name, after `=` by the whole name."""
    matches: Callable[[str, str], bool] = str.__eq__ if value.startswith("=") else str.startswith
    named = [one.partition(":")[0] for one in value.removeprefix("=").split(",") if one]
    return any(matches(name, one) for one in named for name in there)


def _shown(name: str, value: str) -> str:
    cut = value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "..."
    # A container runtime reads CDI specifications as YAML, which some characters would make unreadable.
    return f"{name}={''.join(one if one.isprintable() else '?' for one in cut)}"


def _some(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def summary(environment: PassedEnvironment) -> str:
    """What was set, why, and what was kept, in one line; "" if there is nothing."""
    parts = [
        f"set {', '.join(f'{one.name}={one.value}' for one in same)} ({why})"
        for why, same in _by_reason(environment.passed).items()
    ]
    parts += [f"kept {', '.join(environment.kept)} of the pod"] if environment.kept else []
    if environment.left_out:
        parts += [f"left out {', '.join(environment.left_out)}: envFrom of the container may have others of their kind"]
    return "; ".join([*parts, *environment.wrong])


def _by_reason(passed: Sequence[PassedVariable]) -> dict[str, list[PassedVariable]]:
    found: dict[str, list[PassedVariable]] = {}
    for one in passed:
        found.setdefault(one.why, []).append(one)
    return found
