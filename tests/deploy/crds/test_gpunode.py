# SPDX-License-Identifier: Apache-2.0
"""The definition of GPUNode: the same fields as the wire structs and the reference have, and a real API server keeps
what fits it and refuses the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec
import pytest
import yaml

from dovetail.core.decisions import Bind
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.api.decoding import Reader
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import GPU_NODES, NODES, PODS
from dovetail.kube.nodes.layouts import of_gpu_node
from dovetail.kube.objects.topology import GPUNode, GPUNodeSpec, GPUNodeStatus
from dovetail.scheduler import wire
from tests.deploy.crds.schemas import closed, leaves, of_struct
from tests.docs.pages import page
from tests.paths import ROOT
from tools.controlplane.plane import Plane, RequestFailed

DEFINITION = ROOT / "deploy/crds/gpunode.yaml"
SCHEMA = yaml.safe_load(DEFINITION.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
SPEC, STATUS = SCHEMA["spec"], SCHEMA["status"]
Document = dict[str, Any]
(EXAMPLE,) = [yaml.safe_load(b.text) for b in page("docs/reference/gpunode.md").blocks if b.language == "yaml"]


def test_the_schema_has_the_fields_and_types_of_the_wire_structs() -> None:
    assert dict(leaves(STATUS)) == dict(of_struct(GPUNodeStatus))
    assert dict(leaves(SPEC)) == dict(of_struct(GPUNodeSpec))


@pytest.mark.parametrize(("section", "schema"), [("status", STATUS), ("spec", SPEC)])
def test_the_reference_has_every_field(section: str, schema: Document) -> None:
    rows = page("docs/reference/gpunode.md").section(f"Fields of the {section}").rows("field")
    assert [row.code[0][0] for row in rows] == [path for path, _ in leaves(schema)]


def test_every_struct_of_the_schema_states_what_is_in_it() -> None:
    assert closed(STATUS)
    assert closed(SPEC)


def test_the_example_of_the_reference_is_used_as_a_whole() -> None:
    obj = msgspec.convert(EXAMPLE, GPUNode)
    described, findings = of_gpu_node(obj)
    assert described is not None
    assert findings == ()
    assert obj.status.kubelet is not None


def test_an_object_of_the_wrong_type_is_left_out_of_the_list_and_named() -> None:
    bad = deepcopy(EXAMPLE)
    bad["metadata"] = {"name": "gpu-2"}
    bad["status"]["pcieLevels"] = [["X", 1], [1, "X"]]
    body = {"metadata": {"resourceVersion": "7"}, "items": [EXAMPLE, bad]}
    found, left_out = Reader(GPU_NODES, GPUNode).page(json.dumps(body).encode())
    assert [item.metadata.name for item in found.items or ()] == ["gpu-1"]
    assert [(one.key, one.problem) for one in left_out] == [
        (("", "gpu-2"), "Expected `str`, got `int` - at `$.status.pcieLevels[0][1]`")
    ]


@pytest.fixture(scope="module")
def defined(plane: Plane) -> Plane:
    plane.kubectl("apply", f"--filename={DEFINITION}")
    plane.kubectl("wait", "--for=condition=Established", "crd/gpunodes.dovetail.dev", "--timeout=60s")
    return plane


def write_status(plane: Plane, document: Document) -> None:
    """Create the object and write its status."""
    for subresource in ("", "status"):
        plane.apply(GPU_NODES.path(None, document["metadata"]["name"], subresource), document)


@pytest.mark.plane
async def test_a_real_server_keeps_all_that_is_reported(defined: Plane) -> None:
    write_status(defined, EXAMPLE)
    async with Client(load_kubeconfig([defined.kubeconfig])) as client:
        listing = await list_all(client, GPU_NODES, GPUNode)
    assert listing.bad == []
    assert listing.objects["", "gpu-1"].status == msgspec.convert(EXAMPLE, GPUNode).status
    shown = defined.kubectl("get", "gpunodes", "gpu-1")
    assert re.search(r"gpu-1 +NVIDIA A100 80GB PCIe +restricted", shown)


@pytest.mark.plane
@pytest.mark.parametrize("sharing", [{"strategy": "none"}, {"strategy": "mps", "replicas": 48},
                                     {"strategy": "time-slicing", "replicas": 2, "failRequestsGreaterThanOne": True,
                                      "resource": "nvidia.com/gpu.shared"}])  # fmt: skip
async def test_a_real_server_keeps_how_gpus_are_shared(defined: Plane, sharing: Document) -> None:
    document = deepcopy(EXAMPLE) | {"metadata": {"name": "shared"}}
    document["status"]["sharing"] = sharing
    write_status(defined, document)
    async with Client(load_kubeconfig([defined.kubeconfig])) as client:
        listing = await list_all(client, GPU_NODES, GPUNode)
    assert listing.objects["", "shared"].status == msgspec.convert(document, GPUNode).status
    defined.kubectl("delete", "gpunodes", "shared")


@pytest.mark.plane
@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda s: s.update(observedTime="yesterday"), "status.observedTime"),
        (lambda s: s["gpus"][0].update(index="0"), "index"),
        (lambda s: s["gpus"][0].update(uuid=""), "status.gpus[0].uuid"),
        (lambda s: s["gpus"][0].update(numaNode=-1), "status.gpus[0].numaNode"),
        (lambda s: s["pcieLevels"][0].__setitem__(1, "NVL"), "status.pcieLevels[0][1]"),
        (lambda s: s["pcieLevels"].pop(), "status.pcieLevels"),
        (lambda s: s["nvlinks"][0].append(1), "status.nvlinks"),
        (lambda s: s["nvlinks"][0].__setitem__(1, 37), "status.nvlinks[0][1]"),
        (lambda s: s["nics"][0]["levels"].append("PIX"), "status.nics"),
        (lambda s: s["nics"][0]["levels"].__setitem__(0, "X"), "status.nics[0].levels[0]"),
        (lambda s: s.update(rates={"pcieMBps": 0}), "status.rates.pcieMBps"),
        (lambda s: s.update(sharing={"replicas": 4}), "status.sharing.strategy"),
        (lambda s: s.update(sharing={"strategy": "MPS", "replicas": 4}), "status.sharing.strategy"),
        (lambda s: s.update(sharing={"strategy": "mps"}), "status.sharing.replicas"),
        (lambda s: s.update(sharing={"strategy": "mps", "replicas": 1}), "status.sharing.replicas"),
        (lambda s: s.update(sharing={"strategy": "mps", "replicas": 2, "resource": "x"}), "status.sharing.resource"),
        (lambda s: s["kubelet"].update(version="1.37"), "status.kubelet.version"),
        (lambda s: s["kubelet"].update(topologyManagerPolicy="strict"), "status.kubelet.topologyManagerPolicy"),
        (lambda s: s["kubelet"].update(numaNodes=[]), "status.kubelet.numaNodes"),
        (lambda s: s["kubelet"]["cpus"][0].update(cores=["0;2"]), "status.kubelet.cpus[0].cores[0]"),
        (lambda s: s["kubelet"]["devices"][0].update(devices=None), "status.kubelet.devices[0].devices"),
    ],
)  # fmt: skip
def test_a_real_server_refuses_what_does_not_fit(
    defined: Plane, change: Callable[[Document], object], field: str
) -> None:
    document = deepcopy(EXAMPLE) | {"metadata": {"name": "refused"}}
    change(document["status"])
    with pytest.raises(RequestFailed, match=re.escape(field)):
        write_status(defined, document)


@pytest.mark.plane
async def test_a_real_server_copies_what_a_binding_carries_to_the_pod(defined: Plane) -> None:
    defined.kubectl("create", "namespace", "carried")
    defined.kubectl("wait", "--namespace=carried", "--for=create", "serviceaccount/default", "--timeout=60s")
    spec = {"schedulerName": "dovetail", "containers": [{"name": "main", "image": "none"}]}
    # Other tests may have put up the policy by which the scheduler alone binds so.
    scheduler = defined.kubeconfig_for("system:serviceaccount:dovetail-system:dovetail-scheduler", ["system:masters"])
    async with Client(load_kubeconfig([scheduler])) as client:
        await client.request("POST", NODES.path(), {"metadata": {"name": "carried"}})
        document = {"metadata": {"name": "p", "annotations": {"example.com/a": "9"}}, "spec": spec}
        made = await client.request("POST", PODS.path("carried"), document, decode=Document)
        assert made is not None
        uid = made["metadata"]["uid"]
        body = wire.binding("carried", "p", uid, Bind(uid, "carried", 4, devices=(0, 3), rank=2), "run", "{}")
        await client.request("POST", PODS.path("carried", "p", "binding"), body)
        bound = await client.request("GET", PODS.path("carried", "p"), decode=Document)
    assert bound is not None
    assert bound["metadata"]["annotations"] == {
        "dovetail.dev/bound": "{}", "dovetail.dev/decision": "run-4", "dovetail.dev/devices": "0,3",
        "dovetail.dev/rank": "2", "example.com/a": "9",
    }  # fmt: skip
    defined.kubectl("delete", "node", "carried")
