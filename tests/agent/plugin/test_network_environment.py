# SPDX-License-Identifier: Apache-2.0
"""Which variables a container gets for its network, and what is reported of its own."""

from __future__ import annotations

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from dovetail.agent.cdi import CLAIM_KIND, Edits, specification
from dovetail.agent.kubelet.container_networks import ContainerNetwork, networks_of
from dovetail.agent.machine.host import Host
from dovetail.agent.machine.sysfs import HostInterface
from dovetail.agent.plugin.job_network import EXPLANATION
from dovetail.agent.plugin.network_environment import can_use_rdma, environment, summary
from dovetail.kube.objects.pods_on_node import PodOnNode
from tests.agent.agents import uuid
from tests.agent.plugin.nics import FOUR, machine, nic

Variables = dict[str, str]
POD, NODE = ContainerNetwork(), ContainerNetwork(host_network=True)
MANAGEMENT = nic("mlx5_bond_0", (0, 1, 2, 3), 3_125)


def passed(
    found: Host, network: ContainerNetwork, *gpus: int, rdma: bool = False, interface: str = ""
) -> dict[str, str]:
    made = environment(found, [uuid(gpu) for gpu in gpus], network, rdma=rdma, interface=interface)
    assert all(one.why for one in made.passed)
    return {one.name: one.value for one in made.passed}


def wrong(found: Host, own: dict[str, str | None], network: ContainerNetwork = POD) -> str:
    return "; ".join(environment(found, [uuid(0)], replace(network, own=own), rdma=True).wrong)


def with_interfaces(*interfaces: HostInterface) -> Host:
    found = machine(*FOUR)
    return replace(found, interfaces=(*found.interfaces, *interfaces))


def test_on_the_pod_network_the_interface_is_eth0_and_nics_are_named_only_where_they_can_be_used() -> None:
    without = {"NCCL_SOCKET_IFNAME": "=eth0", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "eth0", "UCX_NET_DEVICES": "eth0"}
    assert passed(machine(*FOUR), POD, 0) == without
    assert passed(machine(*FOUR), POD, 1, 3, rdma=True) == without | {
        "NCCL_IB_HCA": "=mlx5_1,mlx5_3",
        "UCX_NET_DEVICES": "mlx5_1:1,mlx5_3:1,eth0",
    }


@pytest.mark.parametrize(
    "network",
    [
        replace(POD, further_networks=True), replace(POD, claims=True),
        replace(POD, resources=frozenset({"nvidia.com/gpu", "nvidia.com/hostdev"})),
    ],
)  # fmt: skip
def test_ucx_is_not_kept_from_nics_that_others_give_the_container(network: ContainerNetwork) -> None:
    assert passed(machine(*FOUR), network, 0).keys() == {"NCCL_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"}
    only_gpus = replace(POD, resources=frozenset({"nvidia.com/gpu"}))
    assert passed(machine(*FOUR), only_gpus, 0)["UCX_NET_DEVICES"] == "eth0"


def test_a_node_with_a_management_nic_states_to_nvshmem_which_nic_each_pe_takes() -> None:
    shared = (nic("mlx5_0", (0, 1)), nic("mlx5_1", (2, 3)), MANAGEMENT)
    found = passed(machine(*shared), POD, 0, 1, 2, rdma=True)
    assert found["NVSHMEM_ENABLE_NIC_PE_MAPPING"] == "1"
    assert found["NVSHMEM_HCA_PE_MAPPING"] == "mlx5_0:1:2,mlx5_1:1:1"
    two_for_each = (nic("mlx5_0", (0, 1)), nic("mlx5_1", (0, 1)), MANAGEMENT)
    assert passed(machine(*two_for_each), POD, 0, 1, rdma=True)["NVSHMEM_HCA_PE_MAPPING"] == "mlx5_0:1:1,mlx5_1:1:1"
    assert "NVSHMEM_HCA_PE_MAPPING" not in passed(machine(*FOUR), POD, 0, rdma=True)


def test_where_rates_are_not_known_ucx_is_not_restricted() -> None:
    assert "UCX_NET_DEVICES" not in passed(machine(nic("mlx5_0", (0,), 0)), POD, 0, rdma=True)


@pytest.mark.parametrize(
    ("interfaces", "name"),
    [
        ((HostInterface("eno1", "pci-a", True), HostInterface("eno2", "pci-b", False)), "eno1"),
        ((HostInterface("eno1", "a", True, "bond0"), HostInterface("eno2", "b", True, "bond0")), "bond0"),
        ((HostInterface("eno1", "a", True), HostInterface("cni0", "", True)), "eno1"),
        ((HostInterface("eno1", "a", True), HostInterface("eno2", "b", True)), ""),
        ((HostInterface("eno1", "a", True, "ovs-system"),), ""),
        ((HostInterface("eno1", "a", True, "bond0"), HostInterface("bond0", "", True, above=("bond0.7",))), ""),
        ((), ""),
    ],
    ids=["one is up", "a bond", "virtual ones", "two are up", "Open vSwitch", "a VLAN above", "four NICs for data"],
)  # fmt: skip
def test_on_the_network_of_the_node_only_an_interface_that_is_certain_is_named(
    interfaces: tuple[HostInterface, ...], name: str
) -> None:
    assert passed(with_interfaces(*interfaces), NODE, 0).get("NCCL_SOCKET_IFNAME", "=")[1:] == name
    assert passed(with_interfaces(*interfaces), NODE, 0, interface="ens9")["NCCL_SOCKET_IFNAME"] == "=ens9"


def test_a_single_nic_serves_for_both() -> None:
    assert passed(machine(FOUR[0]), NODE, 0, rdma=True)["UCX_NET_DEVICES"] == "mlx5_0:1,ib-mlx5_0"


@pytest.mark.parametrize("rdma", [False, True])
def test_a_pod_that_sets_one_of_a_group_decides_for_the_group(rdma: bool) -> None:
    both = passed(machine(*FOUR, MANAGEMENT), POD, 0, rdma=rdma)
    interface = {"NCCL_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"}
    own_nics = replace(POD, own={"NVSHMEM_HCA_LIST": "mlx5_0:1"})
    assert passed(machine(*FOUR, MANAGEMENT), own_nics, 0, rdma=rdma).keys() == interface
    # A value from elsewhere is the pod's, too. The interface of another's choice is not put beside the NICs.
    own_interface = replace(POD, own={"NCCL_SOCKET_IFNAME": None})
    found = passed(machine(*FOUR, MANAGEMENT), own_interface, 0, rdma=rdma)
    assert found.keys() == both.keys() - interface - (set() if rdma else {"UCX_NET_DEVICES"})
    assert "eth0" not in "".join(found.values())


@pytest.mark.parametrize(
    ("own", "reported"),
    [
        (
            {"NCCL_SOCKET_IFNAME": "ib0"},
            "=ib0 names no interface of the pod network: it has eth0, lo",
        ),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "NCCL_SOCKET_IFNAME==eth names no interface"),
        (
            {"NCCL_IB_HCA": "mlx4"},
            "=mlx4 names no RDMA NIC of the node: it has mlx5_0, mlx5_1, mlx5_2, mlx5_3",
        ),
        ({"NVSHMEM_HCA_LIST": "mlx5_9:1"}, "NVSHMEM_HCA_LIST=mlx5_9:1 names no RDMA NIC"),
        ({"NVSHMEM_HCA_LIST": "mlx5_0:1"}, "NVSHMEM_HCA_LIST has no effect without NVSHMEM_ENABLE_NIC_PE_MAPPING=1"),
        ({"UCX_NET_DEVICES": "ib0,mlx5_9:1"}, "UCX fails to start"),
    ],
)
def test_a_value_that_names_what_is_not_there_is_kept_and_reported(own: dict[str, str | None], reported: str) -> None:
    network = replace(POD, own=own)
    made = environment(machine(*FOUR), [uuid(0)], network, rdma=True)
    assert made.kept == tuple(own) and not {one.name for one in made.passed} & own.keys()
    assert reported in summary(made) and f"kept {', '.join(own)} of the pod" in summary(made)


@pytest.mark.parametrize(
    "own",
    [
        {"NCCL_SOCKET_IFNAME": "eth"}, {"NCCL_SOCKET_IFNAME": "^docker,lo"}, {"NCCL_IB_HCA": "=mlx5_1:1,mlx5_7"},
        {"NCCL_IB_HCA": "mlx5"}, {"UCX_NET_DEVICES": "all"}, {"UCX_NET_DEVICES": "mlx5_9:1,eth0"},
        {"NVSHMEM_HCA_LIST": "mlx5_0:1", "NVSHMEM_ENABLE_NIC_PE_MAPPING": "1"}, {"NCCL_SOCKET_IFNAME": None},
    ],
)  # fmt: skip
def test_nothing_is_reported_of_values_that_can_be_right(own: dict[str, str | None]) -> None:
    assert not wrong(machine(*FOUR), own)


def test_interfaces_of_further_networks_are_not_judged_and_those_of_the_node_are() -> None:
    assert not wrong(machine(*FOUR), {"NCCL_SOCKET_IFNAME": "net1"}, replace(POD, further_networks=True))
    assert not wrong(machine(*FOUR), {"NCCL_SOCKET_IFNAME": "ib-mlx5_1"}, NODE)
    assert "interface of the node" in wrong(machine(*FOUR), {"NCCL_SOCKET_IFNAME": "eth0"}, NODE)


@pytest.mark.parametrize("character", ["\x7f", "\x80", "\n"])
def test_a_value_with_control_characters_leaves_a_specification_that_runtimes_can_read(character: str) -> None:
    """They read it as YAML; without it the container would not start."""
    made = environment(machine(*FOUR), [uuid(0)], replace(POD, own={"NCCL_IB_HCA": f"a{character}"}), rdma=False)
    document = specification(CLAIM_KIND, {"x": Edits(env=((EXPLANATION, summary(made)),))})
    text = yaml.safe_load(msgspec.json.encode(document))["devices"][0]["containerEdits"]["env"][0]
    assert "NCCL_IB_HCA=a? names no" in text


def test_a_long_value_is_cut_where_it_is_reported() -> None:
    assert len(wrong(machine(*FOUR), {"NCCL_IB_HCA": "x" * 30_000})) < 300


@pytest.mark.parametrize(
    ("network", "can"),
    [
        (POD, False),
        (replace(POD, privileged=True), True),
        (replace(POD, resources=frozenset({"nvidia.com/gpu", "rdma/hca_a"})), True),
        (replace(POD, resources=frozenset({"example.com/hca"})), True),
        (replace(POD, resources=frozenset({"nvidia.com/gpu"})), False),
    ],
)
def test_which_container_can_use_rdma_devices(network: ContainerNetwork, can: bool) -> None:
    assert can_use_rdma(network, frozenset({"example.com/hca"})) is can


def test_beside_variables_that_are_not_known_only_those_are_set_that_others_are_derived_from() -> None:
    unknown = replace(POD, more_own=True)
    found = machine(*FOUR, MANAGEMENT)
    names = [one.name for one in environment(found, [uuid(0)], unknown, rdma=True).passed]
    assert names == ["NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"]
    text = summary(environment(found, [uuid(0)], unknown, rdma=True))
    assert "left out NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME, UCX_NET_DEVICES, NVSHMEM_ENABLE_NIC_PE_MAPPING" in text
    assert "envFrom" in text and "left out" not in summary(environment(found, [uuid(0)], POD, rdma=True))


@pytest.mark.parametrize(
    ("sources", "unknown"),
    [
        ([], False),
        ([{"configMapRef": {"name": "a"}}], True),
        ([{"prefix": "APP_", "secretRef": {"name": "a"}}], False),
        ([{"prefix": "N", "configMapRef": {"name": "a"}}], True),
        ([{"prefix": "NCCL_IB_", "configMapRef": {"name": "a"}}], True),
        ([{"prefix": "APP_", "secretRef": {"name": "a"}}, {"secretRef": {"name": "b"}}], True),
    ],
)
def test_what_env_from_may_bring_is_read_from_its_prefix(sources: list[dict[str, object]], unknown: bool) -> None:
    document = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "envFrom": sources}]}}
    assert networks_of(msgspec.convert(document, PodOnNode))["c"].more_own is unknown
