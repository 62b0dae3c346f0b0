# SPDX-License-Identifier: Apache-2.0
"""deploy/agent/ grants the agent what its page lists and no more, and with that it writes about its own node alone."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail import __version__
from dovetail.agent.options import AgentOptions
from dovetail.cli.agent.mps import command as mps
from dovetail.cli.agent.observe import command as observe
from dovetail.cli.agent.run import command
from dovetail.kube.api.client import APPLY_PATCH, MERGE_PATCH, Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.errors import ApiError, Forbidden
from tests.docs.pages import Row, page
from tests.paths import ROOT
from tools.controlplane import credentials
from tools.controlplane.plane import Plane, RequestFailed

DEPLOY = ROOT / "deploy" / "agent"
FUNCTIONS = sorted(path.name for path in (DEPLOY / "functions").iterdir())
BASE = "always"
GPU_NODES = "/apis/dovetail.dev/v1alpha1/gpunodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
ZONES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
Document = dict[str, Any]
Right = tuple[str, str, str]


def documents(path: Path) -> list[Document]:
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


def role_file(function: str) -> Path:
    return DEPLOY / "rbac.yaml" if function == BASE else DEPLOY / "functions" / function / "role.yaml"


def granted(function: str) -> set[Right]:
    if not role_file(function).exists():
        return set()
    role = next(d for d in documents(role_file(function)) if d["kind"] == "ClusterRole")
    return {
        (group or "core", resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def patches(function: str) -> list[Any]:
    (kustomization,) = documents(DEPLOY / "functions" / function / "kustomization.yaml")
    return [yaml.safe_load(patch["patch"]) for patch in kustomization["patches"]]


def pod_spec(function: str) -> Document:
    """The part of the pod that a function adds, or the pod itself."""
    if function == BASE:
        (daemon_set,) = documents(DEPLOY / "daemonset.yaml")
    else:
        daemon_set = next((patch for patch in patches(function) if isinstance(patch, dict)), {})
    spec: Document = daemon_set.get("spec", {}).get("template", {}).get("spec", {})
    return spec


def pods(function: str) -> list[Document]:
    """What a function adds to the agent's pod, and a pod of its own where it has one."""
    own = DEPLOY / "functions" / function / "daemonset.yaml"
    return [pod_spec(function), *(d["spec"]["template"]["spec"] for d in (documents(own) if own.exists() else ()))]


def containers(function: str) -> dict[str, Document]:
    return {each["name"]: each for spec in pods(function) for each in spec.get("containers", [])}


def container(function: str) -> Document:
    """What a function adds to the agent's."""
    return containers(function).get("agent", {})


def rows(section: str, function: str) -> list[Row]:
    """The row of a function in the table of a section."""
    found = page("docs/reference/agent-privileges.md").section(section).rows("function")
    return [row for row in found if row.cells[0].strip("`") == function]


@pytest.mark.parametrize("function", [BASE, *FUNCTIONS])
def test_the_page_names_the_rights_of_each_function(function: str) -> None:
    documented = {
        (row.cells[1], row.code[2][0], verb)
        for row in rows("At the API server", function)
        for verb in row.cells[3].split(", ")
    }
    assert documented == granted(function)


@pytest.mark.parametrize("function", [BASE, *FUNCTIONS])
def test_the_page_names_the_paths_of_each_function(function: str) -> None:
    documented = {(row.code[1][0], row.cells[2] == "read") for row in rows("On the host", function)}
    mounts = {mount["name"]: mount for each in containers(function).values() for mount in each.get("volumeMounts", [])}
    mounted = {
        (volume["hostPath"]["path"], mounts[volume["name"]].get("readOnly", False) or volume["name"] == "null")
        for spec in pods(function)
        for volume in spec.get("volumes", [])
        if "hostPath" in volume
    }
    assert documented == mounted


@pytest.mark.parametrize("function", [BASE, *FUNCTIONS])
def test_the_page_names_what_else_each_function_has(function: str) -> None:
    documented = {span for row in rows("Beyond that", function) for span in row.code[1]}
    contexts = [each.get("securityContext", {}) for each in containers(function).values()]
    has = {one for context in contexts for one in context.get("capabilities", {}).get("add", [])}
    has |= {name for name in ("hostPID", "hostIPC", "hostNetwork") for spec in pods(function) if spec.get(name)}
    assert documented == has


def test_nothing_is_privileged_and_the_base_has_no_capability() -> None:
    for function in (BASE, *FUNCTIONS):
        for each in containers(function).values():
            assert "privileged" not in each.get("securityContext", {})
        assert all("hostNetwork" not in spec for spec in pods(function))
    assert container(BASE)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod_spec(BASE)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_pod_of_the_mps_daemons_is_beside_the_agent_without_token_and_memory_limit() -> None:
    _, own = pods("mps")
    assert own["affinity"] == {"nodeAffinity": pod_spec(BASE)["affinity"]["nodeAffinity"]}
    assert own["tolerations"] == pod_spec(BASE)["tolerations"]
    assert own["automountServiceAccountToken"] is False and "serviceAccountName" not in own
    keeper = containers("mps")["mps"]
    assert "limits" not in keeper["resources"]
    assert keeper["args"] == ["agent", "mps", f"--mps-folder={AgentOptions('n').mps_folder}"]
    assert {option for parameter in mps.params for option in parameter.opts} >= {"--mps-folder"}
    (daemon_set,) = documents(DEPLOY / "functions/mps/daemonset.yaml")
    assert daemon_set["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert "capabilities" not in container("mps").get("securityContext", {}) and "hostPID" not in pod_spec("mps")


def test_the_reader_of_mig_has_nothing_but_the_privilege() -> None:
    observer = containers("mig-observer")["mig-observer"]
    assert observer["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
    }
    hosts = {volume["name"] for volume in pod_spec(BASE)["volumes"] if "hostPath" in volume}
    mounts = {mount["name"]: mount["mountPath"] for mount in observer["volumeMounts"]}
    assert mounts.keys() & hosts == {"null"}, "which is how it asks for the GPUs"
    assert mounts["no-token"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    known = {option for parameter in observe.params for option in parameter.opts}
    assert observer["args"][:2] == ["agent", "observe"]
    assert {word.partition("=")[0] for word in observer["args"][2:]} <= known
    socket = next(word.partition("=")[2] for word in observer["args"] if word.startswith("--socket"))
    documented = [
        operation["value"] for patch in patches("mig-observer") if isinstance(patch, list) for operation in patch
    ]
    assert documented == [f"--mig-observer={socket}"]


def test_roles_have_no_wildcards_and_no_way_around_the_policy() -> None:
    everything = {right for function in (BASE, *FUNCTIONS) for right in granted(function)}
    assert all("*" not in part for right in everything for part in right)
    reach = {resource for _, resource, _ in everything}
    assert not reach & {"secrets", "configmaps", "nodes/proxy", "nodes/status", "pods/exec", "tokenreviews"}
    writes = {(group, resource) for group, resource, verb in everything if verb not in ("get", "list", "watch")}
    policy = next(d for d in documents(DEPLOY / "own-node.yaml") if d["kind"] == "ValidatingAdmissionPolicy")
    limited = {
        (group or "core", resource)
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert writes <= limited


def test_the_options_are_those_of_the_command() -> None:
    words = container(BASE)["args"]
    assert words[:2] == ["agent", "run"]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for function in FUNCTIONS:
        own = [operation["value"] for patch in patches(function) if isinstance(patch, list) for operation in patch]
        words = [*words, *own]
        # Mounts, rights and capabilities of a function come with what makes use of them.
        assert own or function in ("mps", "kubelet-certificate", "processes")
    assert {word.partition("=")[0] for word in words[2:]} <= known


def test_every_function_can_be_chosen_and_the_harmless_ones_are() -> None:
    listed = (DEPLOY / "kustomization.yaml").read_text()
    assert sorted(re.findall(r"- functions/(\S+)", listed)) == FUNCTIONS
    (kustomization,) = documents(DEPLOY / "kustomization.yaml")
    for component in kustomization["components"]:
        for each in containers(component.removeprefix("functions/")).values():
            assert "capabilities" not in each.get("securityContext", {})
    assert kustomization["images"][0]["newTag"] == __version__


# On the real API server, under exactly these roles and this policy.


@pytest.fixture(scope="module")
def deployed(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """deploy/agent/ with all its functions at once, two nodes, and what NodeResourceTopologies are."""
    overlay = tmp_path_factory.mktemp("agent")
    copied = overlay / "agent"
    subprocess.run(["cp", "-r", str(DEPLOY), str(copied)], check=True)
    listed = (copied / "kustomization.yaml").read_text()
    (copied / "kustomization.yaml").write_text(listed.replace("  # - functions", "  - functions"))
    plane.kubectl("apply", f"--filename={ROOT / 'deploy/crds/gpunode.yaml'}")
    plane.apply(DEFINITION, TOPOLOGIES)
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    plane.kubectl("apply", "-k", str(copied))
    for name in ("agent-a", "agent-b"):
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"rack": "r1", "nvidia.com/mig.config": "all-1g.5gb"}},
        }
        plane.apply(f"{NODES}/{name}", node)
    yield plane
    plane.kubectl("delete", "-k", str(copied), "--wait=false")
    for name in ("agent-a", "agent-b"):
        plane.request("DELETE", f"{NODES}/{name}")
    plane.request("DELETE", DEFINITION)


NODES = "/api/v1/nodes"
AGENTS = "/api/v1/namespaces/dovetail-agent"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/noderesourcetopologies.topology.node.k8s.io"
TOPOLOGIES: Document = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "noderesourcetopologies.topology.node.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
    },
    "spec": {
        "group": "topology.node.k8s.io",
        "scope": "Cluster",
        "names": {"plural": "noderesourcetopologies", "kind": "NodeResourceTopology"},
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture
async def agent(deployed: Plane, tmp_path: Path) -> AsyncIterator[Client]:
    """The agent of the node agent-a; that a policy is in force takes the API server a moment to notice."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(_client(deployed, tmp_path, "agent-a"))
        await _policy_in_force(client)
        yield client


def _client(plane: Plane, folder: Path, node: str) -> Client:
    """With the rights of the agent, and a token as a pod on the node has it; without a node, one that names none."""
    asked: Document = {}
    if node:
        uid = plane.request("GET", f"{NODES}/{node}")["metadata"]["uid"]
        asked = {"boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}}
    document = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": asked}
    token = plane.request("POST", f"{AGENTS}/serviceaccounts/dovetail-agent/token", document)["status"]["token"]
    path = folder / f"kubeconfig-{node}"
    path.write_text(credentials.kubeconfig(plane.url, plane.ca_file.read_bytes(), token))
    return Client(load_config(str(path)), retries=0)


async def _policy_in_force(client: Client) -> None:
    # The definition of GPUNode is as new as the policy: until it is served, the server refuses at once.
    last = "nothing was refused"
    for _ in range(200):
        try:
            await client.request("POST", f"{GPU_NODES}?dryRun=All", gpu_node("agent-b"))
        except Forbidden as error:
            if "may not write about" in str(error):
                return
        except ApiError as error:
            last = str(error)
        await asyncio.sleep(0.1)
    raise AssertionError(f"the policy is not in force: {last}")


def gpu_node(name: str, **rest: Any) -> Document:
    return {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}} | rest


def resource_slice(name: str, node: str) -> Document:
    spec: Document = {
        "driver": "gpu.nvidia.com",
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    }
    if not node:
        spec |= {"allNodes": True, "pool": {"name": "all", "generation": 1, "resourceSliceCount": 1}}
        del spec["nodeName"]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


STATUS = {"status": {"observedTime": "2026-01-31T12:00:00Z"}}


async def apply(client: Client, path: str, document: Document) -> None:
    parameters: Any = {"fieldManager": "dovetail-agent", "force": "true"}
    await client.request("PATCH", path, document, content_type=APPLY_PATCH, params=parameters)


async def merge(client: Client, path: str, document: Document) -> None:
    await client.request("PATCH", path, document, content_type=MERGE_PATCH)


@pytest.mark.plane
async def test_it_writes_the_gpunode_of_its_node_and_of_no_other(deployed: Plane, agent: Client) -> None:
    await apply(agent, f"{GPU_NODES}/agent-a", gpu_node("agent-a"))
    await apply(agent, f"{GPU_NODES}/agent-a/status", gpu_node("agent-a", **STATUS))
    with pytest.raises(Forbidden, match="agent of node agent-a may not write about agent-b"):
        await apply(agent, f"{GPU_NODES}/agent-b", gpu_node("agent-b"))
    deployed.apply(f"{GPU_NODES}/agent-b", gpu_node("agent-b"))
    with pytest.raises(Forbidden, match="agent-b"):
        await apply(agent, f"{GPU_NODES}/agent-b/status", gpu_node("agent-b", **STATUS))
    with pytest.raises(Forbidden):
        await agent.request("DELETE", f"{GPU_NODES}/agent-a")
    for node in ("agent-a", "agent-b"):
        deployed.request("DELETE", f"{GPU_NODES}/{node}")


@pytest.mark.plane
async def test_what_the_scheduler_asks_for_is_not_the_agent_s_to_write(deployed: Plane, agent: Client) -> None:
    layout = {"uuid": "GPU-0", "instances": [{"profile": "1g.5gb", "start": 0}]}
    asked = {"spec": {"mig": {"id": "one", "gpus": [layout]}}}
    with pytest.raises(Forbidden, match="spec"):
        await agent.request("POST", GPU_NODES, gpu_node("agent-a", **asked))
    await agent.request("POST", GPU_NODES, gpu_node("agent-a"))
    with pytest.raises(Forbidden, match="spec"):
        await merge(agent, f"{GPU_NODES}/agent-a", asked)
    await merge(agent, f"{GPU_NODES}/agent-a", {"metadata": {"annotations": {"any": "thing"}}})
    deployed.request("DELETE", f"{GPU_NODES}/agent-a")


@pytest.mark.plane
async def test_whether_its_node_was_validated_is_not_the_agent_s_to_write(deployed: Plane, agent: Client) -> None:
    await apply(agent, f"{GPU_NODES}/agent-a", gpu_node("agent-a"))
    await apply(agent, f"{GPU_NODES}/agent-a/status", gpu_node("agent-a", **STATUS))
    status = f"{GPU_NODES}/agent-a/status"
    with pytest.raises(Forbidden, match="readiness"):
        await merge(agent, status, {"status": {"readiness": {"step": "ready"}}})
    missing = {"status": {"readiness": {"step": "driver", "reason": "DriverMissing"}}}
    deployed.request("PATCH", status, missing, MERGE_PATCH)
    await apply(agent, status, gpu_node("agent-a", **STATUS))
    with pytest.raises(Forbidden, match="readiness"):
        await merge(agent, status, {"status": {"readiness": None}})
    deployed.request("DELETE", f"{GPU_NODES}/agent-a")


@pytest.mark.plane
async def test_it_writes_labels_of_its_node_that_report_what_was_found(agent: Client) -> None:
    own = "/api/v1/nodes/agent-a"
    await merge(
        agent, own, {"metadata": {"labels": {"nvidia.com/gpu.count": "8", "nvidia.com/mig.config.state": "success"}}}
    )
    await merge(agent, own, {"metadata": {"labels": {"nvidia.com/gpu.count": None}}})
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "agent-a", "labels": {"nvidia.com/gpu.count": "4"}},
    }
    await agent.apply(own, node, field_manager="dovetail-agent")
    for labels in ({"rack": "r2"}, {"rack": None}, {"nvidia.com/mig.config": "other"}, {"dovetail.dev/agent": "true"}):
        with pytest.raises(Forbidden, match=f"may not change the labels {next(iter(labels))}"):
            await merge(agent, own, {"metadata": {"labels": labels}})
    with pytest.raises(Forbidden, match="agent-b"):
        await merge(agent, "/api/v1/nodes/agent-b", {"metadata": {"labels": {"nvidia.com/gpu.count": "8"}}})


@pytest.mark.plane
async def test_each_label_that_is_documented_may_be_written(agent: Client) -> None:
    sections = ("Of the node", "Of the GPUs", "Of the instances of a profile", "Of a layout")
    tables = [page("docs/reference/labels.md").section(section).rows("label") for section in sections]
    names = [row.code[0][0] for table in tables for row in table]
    assert len(names) > 40
    profiles = ("1g.5gb", "1g.10gb.me", "1c.3g.20gb", "1g.24gb-me")
    written = {name.replace("PROFILE", profile): "1" for name in names for profile in profiles}
    await merge(agent, "/api/v1/nodes/agent-a", {"metadata": {"labels": written}})
    await merge(agent, "/api/v1/nodes/agent-a", {"metadata": {"labels": dict.fromkeys(written)}})


def pod_event(name: str, **changed: Any) -> Document:
    pod = {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "p", "uid": "u-1"}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "eventTime": "2026-01-31T12:00:00.000000Z",
        "reportingController": "dovetail.dev/agent",
        "reportingInstance": "agent-a",
        "regarding": pod,
        "reason": "GPUError",
        "action": "Checking",
        "type": "Warning",
        "note": "XID 79",
    } | changed


@pytest.mark.plane
async def test_it_writes_events_about_pods_in_the_name_of_its_node(agent: Client) -> None:
    events = "/apis/events.k8s.io/v1/namespaces/default/events"
    await agent.request("POST", events, pod_event("p.1"))
    count = {"series": {"count": 2, "lastObservedTime": "2026-01-31T12:01:00.000000Z"}}
    await merge(agent, f"{events}/p.1", count)
    with pytest.raises(Forbidden, match="may not write about agent-b"):
        await agent.request("POST", events, pod_event("p.2", reportingInstance="agent-b"))
    node = {"apiVersion": "v1", "kind": "Node", "name": "agent-a", "uid": "u-2"}
    for changed in ({"regarding": node}, {"reportingController": "kubelet"}):
        with pytest.raises(Forbidden, match="only its own events about pods"):
            await agent.request("POST", events, pod_event("p.3", **changed))


@pytest.mark.plane
@pytest.mark.parametrize(
    "label",
    [
        "nvidia.com/gpu.present",
        "nvidia.com/gpu.deploy.mig-manager",
        "nvidia.com/mig.config",
        "nvidia.com/device-plugin.config",
        "nvidia.com/anything",
        "nvidia.com/gpu.countless",
        "xnvidia.com/gpu.count",
        "nvidia.com.evil.example/gpu.count",
    ],
)
async def test_no_other_label_is_its_to_write(agent: Client, label: str) -> None:
    with pytest.raises(Forbidden, match="may not change the labels"):
        await merge(agent, "/api/v1/nodes/agent-a", {"metadata": {"labels": {label: "true"}}})


@pytest.mark.plane
@pytest.mark.parametrize(
    "change", [{"driver": "nic.example.com"}, {"pool": {"name": "agent-b", "generation": 1, "resourceSliceCount": 1}}]
)
async def test_it_offers_devices_of_its_driver_in_its_pool_alone(
    deployed: Plane, agent: Client, change: Document
) -> None:
    document = resource_slice("slice-c", "agent-a")
    document["spec"] |= change
    with pytest.raises(Forbidden, match=r"only slices of the driver gpu\.nvidia\.com in the pool agent-a"):
        await agent.request("POST", SLICES, document)
    deployed.request("POST", SLICES, document)
    with pytest.raises(Forbidden, match="only slices of the driver"):
        await agent.request("DELETE", f"{SLICES}/slice-c")
    deployed.request("DELETE", f"{SLICES}/slice-c")


@pytest.mark.plane
@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}},
        {"metadata": {"annotations": {"any": "thing"}}},
        {"metadata": {"finalizers": ["example.com/kept"]}},
    ],
    ids=lambda change: json.dumps(change),
)
async def test_it_changes_nothing_else_of_its_node(agent: Client, change: Document) -> None:
    with pytest.raises(Forbidden, match="nothing of its node but labels"):
        await merge(agent, "/api/v1/nodes/agent-a", change)


@pytest.mark.plane
async def test_it_writes_the_slices_of_its_node_and_of_no_other(deployed: Plane, agent: Client) -> None:
    own = await agent.request("POST", SLICES, resource_slice("slice-a", "agent-a"), decode=dict[str, Any])
    own["metadata"]["labels"] = {"any": "thing"}
    await agent.request("PUT", f"{SLICES}/slice-a", own)
    for node in ("agent-b", ""):
        with pytest.raises(Forbidden, match=f"may not write about {node}"):
            await agent.request("POST", SLICES, resource_slice("slice-b", node))
    deployed.request("POST", SLICES, resource_slice("slice-b", "agent-b"))
    found = await agent.request("GET", SLICES, decode=dict[str, Any])
    (other,) = (item for item in found["items"] if item["metadata"]["name"] == "slice-b")
    other["metadata"]["labels"] = {"any": "thing"}
    with pytest.raises(Forbidden, match="agent-b"):
        await agent.request("PUT", f"{SLICES}/slice-b", other)
    with pytest.raises(Forbidden, match="agent-b"):
        await agent.request("DELETE", f"{SLICES}/slice-b")
    await agent.request("DELETE", f"{SLICES}/slice-a")
    deployed.request("DELETE", f"{SLICES}/slice-b")


@pytest.mark.plane
async def test_it_writes_the_topology_of_its_node_and_of_no_other(deployed: Plane, agent: Client) -> None:
    def document(name: str) -> Document:
        kinds = {"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology"}
        return kinds | {"metadata": {"name": name}, "zones": []}

    await agent.request("POST", ZONES, document("agent-a"))
    await merge(agent, f"{ZONES}/agent-a", {"zones": [{"name": "node-0", "type": "Node"}]})
    with pytest.raises(Forbidden, match="agent-b"):
        await agent.request("POST", ZONES, document("agent-b"))
    deployed.request("POST", ZONES, document("agent-b"))
    with pytest.raises(Forbidden, match="agent-b"):
        await agent.request("DELETE", f"{ZONES}/agent-b")
    await agent.request("DELETE", f"{ZONES}/agent-a")


@pytest.mark.plane
async def test_a_token_that_names_no_node_writes_nothing(deployed: Plane, agent: Client, tmp_path: Path) -> None:
    async with _client(deployed, tmp_path, "") as anonymous:
        for path, document in ((GPU_NODES, gpu_node("agent-a")), (SLICES, resource_slice("slice-a", "agent-a"))):
            with pytest.raises(Forbidden, match="token names no node"):
                await anonymous.request("POST", path, document)


@pytest.mark.plane
async def test_what_it_has_no_right_to(deployed: Plane, agent: Client) -> None:
    for method, path in (
        ("GET", "/api/v1/namespaces/kube-system/secrets"),
        ("GET", "/api/v1/nodes/agent-a/proxy/configz"),
        ("DELETE", "/api/v1/nodes/agent-a"),
        ("GET", "/api/v1/namespaces/default/pods/any"),
    ):
        with pytest.raises(Forbidden):
            await agent.request(method, path)
    with pytest.raises(Forbidden):
        await merge(agent, "/api/v1/namespaces/default/pods/any", {"metadata": {"labels": {"any": "thing"}}})
    await agent.request("GET", "/api/v1/pods?fieldSelector=spec.nodeName=agent-a")


@pytest.mark.plane
async def test_others_are_not_bound_by_the_policy(deployed: Plane, agent: Client) -> None:
    deployed.request("PATCH", f"{NODES}/agent-b", {"metadata": {"labels": {"rack": "r7"}}}, MERGE_PATCH)
    deployed.request("POST", GPU_NODES, gpu_node("agent-b"))
    deployed.request("DELETE", f"{GPU_NODES}/agent-b")


@pytest.mark.plane
def test_its_pod_is_taken_and_one_like_it_elsewhere_is_not(deployed: Plane) -> None:
    """The API server checks the pod against the level of its namespace: paths of the host need `privileged`."""
    daemon_set = deployed.request("GET", "/apis/apps/v1/namespaces/dovetail-agent/daemonsets/dovetail-agent")
    spec = daemon_set["spec"]["template"]["spec"] | {"runtimeClassName": None}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "like-the-agent"}, "spec": spec}
    deployed.request("POST", f"{AGENTS}/pods?dryRun=All&fieldValidation=Strict", pod)
    labelled = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "restricted", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }
    restricted = "/api/v1/namespaces/restricted"
    deployed.apply(restricted, labelled)
    del spec["serviceAccountName"], spec["serviceAccount"]
    deployed.kubectl("wait", "--namespace=restricted", "--for=create", "serviceaccount/default", "--timeout=60s")
    with pytest.raises(RequestFailed, match="violates PodSecurity"):
        deployed.request("POST", f"{restricted}/pods?dryRun=All&fieldValidation=Strict", pod)
    deployed.request("DELETE", restricted)
