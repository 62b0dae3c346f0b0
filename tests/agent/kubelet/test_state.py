# SPDX-License-Identifier: Apache-2.0
"""The kubelet's state in the GPUNode lets the scheduler predict the admission."""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dovetail.agent.apis.podresources_pb2 import AllocatableResourcesResponse
from dovetail.agent.kubelet.state import (
    KubeletConfig,
    KubeletConfigError,
    KubeletNode,
    read_file,
    read_kubelet_config,
    state_of,
)
from dovetail.agent.machine.sysfs import Sysfs
from dovetail.agent.publish.gpunode import document
from dovetail.core.devices.kubelet.inventory import Cpu, DevicePool, Inventory, ManagedDevice
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.credentials import Files
from dovetail.kube.api.errors import ConfigError, Forbidden, Unreachable
from dovetail.kube.nodes.inventories import inventory_of
from dovetail.kube.objects.topology import GPUNode, GPUNodeStatus, GpuStatus, KubeletState, ObjectMeta
from tools.standin import Standin

Machine = Callable[[Any], Standin]
STATIC = KubeletConfig(
    topology_manager_policy="single-numa-node",
    topology_manager_scope="pod",
    cpu_manager_policy="static",
    cpu_manager_policy_options={"full-pcpus-only": "true"},
    kube_reserved={"cpu": "1500m"},
    system_reserved={"cpu": "500m", "memory": "1Gi"},
    feature_gates={"PodLevelResources": True},
)


def offered(*devices: tuple[str, str, int | None]) -> AllocatableResourcesResponse:
    """The kubelet's answer for devices (resource, id, NUMA node), with one entry for each device."""
    answer = AllocatableResourcesResponse()
    for resource, name, numa in devices:
        one = answer.devices.add(resource_name=resource, device_ids=[name])
        if numa is not None:
            one.topology.nodes.add(ID=numa)
    return answer


def inventory(state: KubeletState | None, uuids: tuple[str, ...] = ()) -> Inventory:
    """The scheduler's inventory of the state, after encoding and decoding."""
    gpus = tuple(GpuStatus(index=i, uuid=uuid) for i, uuid in enumerate(uuids))
    status = document(GPUNodeStatus(kubelet=state, gpus=gpus))
    node = GPUNode(metadata=ObjectMeta(name="n1"), status=msgspec.convert(status, GPUNodeStatus))
    found, findings = inventory_of("n1", node, None, None)
    assert findings == ()
    assert found is not None
    return found


def test_the_scheduler_reads_the_inventory_that_the_agent_writes(standin: Machine) -> None:
    machine = standin("dgx-h100")
    uuids = tuple(f"GPU-{i}" for i in range(8))
    response = offered(
        *(("nvidia.com/gpu", f"GPU-{i}", i // 4) for i in (9, 1, 0, 2) if i < 8),
        ("rdma/hca", "mlx5_10", 1),
        ("rdma/hca", "mlx5_2", 0),
        ("example.com/any", "a", None),
    )
    state, unread = state_of("v1.36.2", STATIC, Sysfs(machine.sysfs), response, {"nvidia.com/gpu"})
    assert unread == ()
    found = inventory(state, uuids)
    assert (found.numa, found.minor, found.topology_policy, found.scope) == ((0, 1), 36, "single-numa-node", "pod")
    assert found.distances == ((10, 32), (32, 10))
    assert (found.cpu_policy, found.cpu_options) == ("static", frozenset({"full-pcpus-only"}))
    assert len(found.cpus) == 224
    assert {cpu.numa for cpu in found.cpus if cpu.socket == 1} == {1}
    by_id = {cpu.id: cpu for cpu in found.cpus}
    assert by_id[112] == Cpu(112, 0, 0, 0, by_id[0].uncore)
    # Two CPUs are reserved: the whole first core.
    assert found.reserved_cpus == {0, 112}
    assert [(pool.numa, pool.type) for pool in found.memory] == [
        (numa, kind) for numa in (0, 1) for kind in ("memory", "hugepages-2Mi", "hugepages-1Gi")
    ]
    assert found.memory[0].total_bytes == 1 << 40
    gpus = (
        *(ManagedDevice(str(i), (0,)) for i in range(3)),
        *(ManagedDevice(str(i), None, healthy=False) for i in range(3, 8)),
    )
    assert found.devices == (
        DevicePool("example.com/any", (ManagedDevice("0", None),), prefers=False),
        # GPUs that the kubelet does not list keep their indices.
        DevicePool("nvidia.com/gpu", gpus, prefers=True),
        DevicePool("rdma/hca", (ManagedDevice("0", (0,)), ManagedDevice("1", (1,))), prefers=False),
    )


def test_cpus_reserved_by_name_are_kept(standin: Machine) -> None:
    config = msgspec.structs.replace(STATIC, reserved_system_cpus="4-5")
    state, _ = state_of("v1.36.2", config, Sysfs(standin("dgx-h100").sysfs), offered())
    assert inventory(state).reserved_cpus == {4, 5}


def test_without_a_static_policy_nothing_is_reserved(standin: Machine) -> None:
    config = msgspec.structs.replace(STATIC, cpu_manager_policy="none", cpu_manager_policy_options={})
    state, unread = state_of("v1.36.2", config, Sysfs(standin("pcie-l40s").sysfs), offered())
    assert state is not None
    assert (state.reserved_system_cpus, unread) == ("", ())


def test_a_reservation_beyond_the_machine_is_reported(standin: Machine) -> None:
    config = msgspec.structs.replace(STATIC, kube_reserved={"cpu": "5000"})
    state, unread = state_of("v1.36.2", config, Sysfs(standin("pcie-l40s").sysfs), offered())
    assert state is not None
    assert state.reserved_system_cpus == ""
    assert [(one.what, "cannot be reserved" in one.why) for one in unread] == [("kubelet.reservedSystemCPUs", True)]


def test_reserved_memory_is_read(standin: Machine) -> None:
    reserved = [{"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"}}, {"numaNode": 1, "limits": {}}]
    document = {"memoryManagerPolicy": "Static", "reservedMemory": reserved}
    machine = standin(
        {
            "like": "pcie-l40s",
            "numa": [
                {"cpus": "0-95,192-287", "memory_gib": 384, "socket": 0, "hugepages_2mib": 512},
                {"cpus": "96-191,288-383", "memory_gib": 384, "socket": 1},
            ],
        }
    )
    state, unread = state_of("v1.37.1", msgspec.convert(document, KubeletConfig), Sysfs(machine.sysfs), offered())
    assert unread == ()
    pools = {(pool.numa, pool.type): pool for pool in inventory(state).memory}
    assert pools[0, "memory"].reserved_bytes == 1 << 30
    assert (pools[0, "hugepages-2Mi"].total_bytes, pools[0, "hugepages-2Mi"].reserved_bytes) == (1 << 30, 4 << 20)
    assert (pools[1, "memory"].reserved_bytes, pools[1, "hugepages-2Mi"].total_bytes) == (0, 0)


def test_numa_nodes_without_cpus_count(standin: Machine) -> None:
    state, _ = state_of("v1.37.1", KubeletConfig(), Sysfs(standin("gh200").sysfs), offered())
    found = inventory(state)
    assert found.numa == tuple(range(9))
    assert {cpu.numa for cpu in found.cpus} == {0}


def test_a_cache_of_some_cores_has_its_id_and_one_of_a_whole_node_has_the_socket(tmp_path: Path) -> None:
    """CPUs 0-3 on one socket in two L3 groups; CPUs 4-5 on another that share one L3."""
    for number, cpus in ((0, "0-3"), (1, "4-5")):
        write(tmp_path / f"devices/system/node/node{number}", cpulist=cpus, distance="10 20", meminfo="MemTotal: 8 kB")
    for cpu, sharing, cache in (
        (0, "0-1", 7),
        (1, "0-1", 7),
        (2, "2-3", 9),
        (3, "2-3", 9),
        (4, "4-5", 11),
        (5, "4-5", 11),
    ):
        folder = tmp_path / f"devices/system/cpu/cpu{cpu}"
        write(folder / "topology", core_id=cpu, physical_package_id=cpu // 4)
        write(folder / "cache/index3", level=3, shared_cpu_list=sharing, id=cache)
        write(folder / "cache/index0", level=1, shared_cpu_list=cpu, id=cpu)
    state, unread = state_of("v1.37.1", KubeletConfig(), Sysfs(tmp_path), offered())
    assert unread == ()
    assert {cpu.id: cpu.uncore for cpu in inventory(state).cpus} == {0: 7, 1: 7, 2: 9, 3: 9, 4: 1, 5: 1}


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def test_without_numa_nodes_there_is_no_state_and_the_reason_names_the_file(tmp_path: Path) -> None:
    state, unread = state_of("v1.37.1", KubeletConfig(), Sysfs(tmp_path), None)
    assert state is None
    assert {one.what: one.why for one in unread} == {
        "kubelet.numaNodes": f"there is no {tmp_path}/devices/system/node",
        "kubelet.devices": "PodResources does not answer",
    }


def test_without_the_version_of_the_kubelet_there_is_no_state(standin: Machine) -> None:
    state, unread = state_of("", KubeletConfig(), Sysfs(standin("pcie-l40s").sysfs), offered())
    assert (state, [one.what for one in unread]) == (None, ["kubelet.version"])


async def test_a_node_without_an_address_is_an_error() -> None:
    with pytest.raises(ConfigError, match="node gpu-1 has no InternalIP yet"):
        await read_kubelet_config(ClusterConfig("https://api:6443"), "", "gpu-1")


def test_a_file_has_the_kubelet_s_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("kind: KubeletConfiguration\ncpuManagerPolicy: static\nreservedSystemCPUs: 0-1\nport: 10250\n")
    config = read_file(path)
    assert (config.cpu_manager_policy, config.reserved_system_cpus) == ("static", "0-1")
    assert (config.topology_manager_policy, config.memory_manager_policy) == ("none", "None")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod", "kind: 'Pod' is not KubeletConfiguration"),
        ("kind: KubeletConfiguration\nfeatureGates: {A: 'yes'}", "featureGates"),
        ("{", "not YAML"),
        ("- 1", "top level"),
        (None, "cannot read"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_refused_with_its_path(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(KubeletConfigError, match=message) as caught:
        read_file(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("addresses", "url"),
    [
        ([("Hostname", "n1"), ("InternalIP", "10.0.0.7")], "https://10.0.0.7:10251"),
        ([("InternalIP", "fd00::7"), ("InternalIP", "10.0.0.7")], "https://[fd00::7]:10251"),
        ([("ExternalIP", "1.2.3.4")], ""),
    ],
)
def test_a_node_has_the_url_of_its_kubelet(addresses: list[tuple[str, str]], url: str) -> None:
    status = {
        "addresses": [{"type": kind, "address": address} for kind, address in addresses],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10251}},
        "nodeInfo": {"kubeletVersion": "v1.36.2"},
    }
    node = msgspec.json.decode(json.dumps({"status": status}), type=KubeletNode)
    assert (node.version, node.url) == ("v1.36.2", url)


@asynccontextmanager
async def kubelet(certificate: Path, token: str) -> AsyncIterator[str]:
    """A kubelet's /configz, for clients with the token."""
    config = {"topologyManagerPolicy": "restricted", "cpuManagerPolicy": "static", "kubeReserved": {"cpu": "1"}}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        allowed = request.startswith("GET /configz ") and f"Authorization: Bearer {token}\r\n" in request
        body = json.dumps({"kubeletconfig": config} if allowed else {"message": "nodes/configz is not for you"})
        status = "200 OK" if allowed else "403 Forbidden"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def self_signed(folder: Path, name: str) -> tuple[Path, str]:
    """(key pair, certificate) as a kubelet signs them itself, for the name of its node."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    form = serialization.PrivateFormat.PKCS8
    pair = folder / f"{name}.pem"
    pair.write_text(
        certificate + key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    )
    return pair, certificate


async def test_the_kubelet_is_queried_with_the_agent_s_token(tmp_path: Path) -> None:
    pair, certificate = self_signed(tmp_path, "gpu-1")
    write(tmp_path / "kubelet/pki", **{"kubelet.crt": certificate})
    _, other = self_signed(tmp_path, "ca")
    async with kubelet(pair, "mine") as url:
        cluster = ClusterConfig("https://api:6443", ca_pem=other, source=Files(token="mine"))
        config = await read_kubelet_config(cluster, url, "gpu-1", tmp_path / "kubelet")
        assert (config.topology_manager_policy, config.cpu_manager_policy) == ("restricted", "static")
        assert config.kube_reserved == {"cpu": "1"}
        stranger = ClusterConfig("https://api:6443", ca_pem=other, source=Files(token="another"))
        with pytest.raises(Forbidden, match="nodes/configz is not for you"):
            await read_kubelet_config(stranger, url, "gpu-1", tmp_path / "kubelet")


async def test_the_token_is_sent_to_no_other_server(tmp_path: Path) -> None:
    """Neither to a server with an unknown certificate, nor to the kubelet of another node."""
    pair, certificate = self_signed(tmp_path, "gpu-1")
    _, other = self_signed(tmp_path, "ca")
    async with kubelet(pair, "mine") as url:
        cluster = ClusterConfig("https://api:6443", ca_pem=other, source=Files(token="mine"))
        with pytest.raises(ConfigError, match=r"spec\.agent\.kubeletCertificate: true"):
            await read_kubelet_config(cluster, url, "gpu-1", tmp_path / "nothing")
        write(tmp_path / "kubelet/pki", **{"kubelet.crt": certificate})
        with pytest.raises(Unreachable, match="gpu-2"):
            await read_kubelet_config(cluster, url, "gpu-2", tmp_path / "kubelet")
