# SPDX-License-Identifier: Apache-2.0
"""Objects that are far longer than anybody needs: read with little work, and never in silence."""

import json
from typing import Any

import msgspec
import pytest
from msgspec.json import encode as json_of

from dovetail.agent.kubelet.container_networks import networks_of
from dovetail.core.model import GPU
from dovetail.core.quantities import MAX_AMOUNT
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.decoding import BadObject, Reader, WatchEvent
from dovetail.kube.objects.claims import DeviceRequest, ResourceClaim
from dovetail.kube.objects.long import LONG, LONGEST, LONGEST_PART
from dovetail.kube.objects.pods import Pod
from dovetail.kube.objects.pods_on_node import PodOnNode
from dovetail.kube.objects.storage import PersistentVolumeClaim
from dovetail.kube.translate import pods
from dovetail.kube.translate.limits import MOST_CONTAINERS, MOST_RESOURCES, MOST_SUMMED
from dovetail.kube.translate.sources import claim_outline

READER = Reader(kinds.PODS, Pod)
PLAIN: dict[str, Any] = {
    "metadata": {
        "name": "a", "namespace": "ml", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "b"},
        "annotations": {"dovetail.dev/gang": "g"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "o", "controller": True}],
    },
    "spec": {
        "schedulerName": "dovetail", "nodeName": "n1", "priority": 7, "nodeSelector": {"zone": "z"},
        "hostNetwork": True,
        "containers": [{"name": "main", "image": "i", "ports": [{"hostPort": 80}],
                        "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": 2, GPU: 4}}}],
        "initContainers": [{"name": "side", "restartPolicy": "Always", "resources": {"requests": {"memory": "1Gi"}}}],
        "tolerations": [{"key": "a", "operator": "Exists"}], "schedulingGates": [{"name": "g"}], "volumes": [],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
        "topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "overhead": {"cpu": "100m"},
    },
    "status": {"phase": "Running", "startTime": "x", "conditions": [{"type": "Ready", "status": "True"}],
               "containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "2"}}]},
}  # fmt: skip


def read(document: dict[str, Any], reader: Reader[Any] = READER) -> Any:
    event = reader.line(json.dumps({"type": "ADDED", "object": document}).encode())
    (page, bad) = reader.page(json.dumps({"metadata": {}, "items": [document]}).encode())
    if isinstance(event, BadObject):
        return event
    assert isinstance(event, WatchEvent)
    # Pages of many objects are taken apart where they are long, one of a few is not.
    assert (len(page.items or ()), bad) == (1, [])
    return event.object


def merged(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    part, _, key = path.partition(".")
    return document | {part: document[part] | {key: value}}


def test_a_long_pod_is_read_like_any_other_as_far_as_its_parts_are_short() -> None:
    # Fields that are not read make it long: environments, commands, other annotations.
    long = merged(PLAIN, "spec.nobodyReads", "x" * LONGEST)
    assert read(long) == read(PLAIN)
    page, bad = READER.page(json.dumps({"metadata": {}, "items": [long, PLAIN] * 33}).encode())
    assert (page.items, bad) == ([read(PLAIN)] * 66, [])


def test_of_a_long_pod_the_agent_reads_no_variables_and_knows_that() -> None:
    reader = Reader(kinds.PODS, PodOnNode)
    variable = {"name": "NCCL_DEBUG", "value": "INFO"}
    documents = [merged(PLAIN, "spec.containers", [{"name": "main", "env": [variable] * n}]) for n in (1, LONGEST)]
    page, bad = reader.page(json.dumps({"metadata": {}, "items": documents}).encode())
    short, long = page.items
    assert not bad and [networks_of(one)["main"].wanted for one in (short, long)] == [True, False]
    assert networks_of(short)["main"].own == {"NCCL_DEBUG": "INFO"} and networks_of(short)["main"].host_network
    assert long.spec.containers[0].name == "main" and long.spec.node_name == "n1"


@pytest.mark.parametrize(
    ("path", "one"),
    [
        ("spec.affinity", {"nodeAffinity": {}, "podAffinity": {}, "nobodyReads": "x" * 300_000}),
        ("spec.tolerations", [{"key": "k" * 300_000}]),
        ("spec.topologySpreadConstraints", [{"topologyKey": "k" * 300_000}]),
        ("spec.schedulingGates", [{"name": "k" * 300_000}]),
        ("spec.resourceClaims", [{"name": "k" * 300_000}]),
        ("spec.volumes", [{"name": "k" * 300_000}]),
        ("spec.nodeSelector", {"k" * 300_000: ""}),
        ("metadata.labels", {"k" * 300_000: ""}),
        ("metadata.ownerReferences", [{"name": "k" * 300_000}]),
    ],
)  # fmt: skip
def test_a_part_that_is_too_long_is_not_read_and_the_pod_waits(path: str, one: Any) -> None:
    found = read(merged(PLAIN, path, one))
    assert found.unread == (path,)
    record = pods.pod(found)
    assert record.problem is not None
    assert (record.problem.field, record.problem.rule) == (path, "is too long to be read")
    # Gates that cannot be read hold it back all the same.
    assert record.gated
    assert dict(record.request.resources) == dict(pods.pod(read(PLAIN)).request.resources)


def test_what_containers_hold_counts_however_much_they_state() -> None:
    made_up = {f"example.com/r{n}": "1" for n in range(20_000)}
    main = {"name": "main", "resources": {"limits": made_up | {"cpu": "7", "memory": "3Gi", GPU: "2"}}}
    record = pods.pod(read(merged(PLAIN, "spec.containers", [main])))
    assert {"cpu": 7100, "memory": 4 * 2**30, GPU: 2}.items() <= dict(record.request.resources).items()
    assert record.problem is not None
    assert record.problem.field == "spec.containers[*].resources"
    env = [{"name": "A", "value": "x" * LONGEST}]
    busy = PLAIN["spec"]["containers"][0] | {"env": env}
    assert read(merged(PLAIN, "spec.containers", [busy])) == read(PLAIN)
    found = read(merged(PLAIN, "spec.containers", [busy | {"ports": [{"hostPort": n} for n in range(9_000)]}]))
    assert found.unread == ("spec.containers[*].ports",)
    assert found.spec.containers[0].resources == read(PLAIN).spec.containers[0].resources


def of_each(n: int, **more: Any) -> dict[str, Any]:
    amounts = {"cpu": f"{n}m", "memory": "1.5Ki", "ephemeral-storage": 7, f"x/r{n}": "1"}
    return {"name": f"c{n}", "resources": {"requests": amounts, "limits": {f"x/r{n}": "1"}}} | more


@pytest.mark.parametrize("padding", ["", "x" * LONGEST])
def test_what_containers_of_a_pod_on_a_node_ask_for_is_added_up_beyond_the_limit(padding: str) -> None:
    count = 150
    env = [{"name": "A", "value": padding}]
    slices = {"limits": {"nvidia.com/mig-1g.5gb": "1"}, "requests": {"nvidia.com/mig-1g.5gb": "1"}}
    every = [of_each(n, env=env if n == 3 else []) for n in range(count)]
    every += [{"name": f"g{n}", "resources": slices} for n in range(100)]
    amounts = dict(pods.pod(read(merged(PLAIN, "spec.containers", every))).request.resources)
    assert amounts["cpu"] == 100 + sum(range(count))
    assert amounts["memory"] == 2**30 + 1536 * count
    assert amounts["ephemeral-storage"] == 7 * count
    assert amounts["nvidia.com/mig-1g.5gb"] == 100
    assert len(amounts) <= MOST_RESOURCES


@pytest.mark.parametrize("decoy", [{"image": "nvidia.com/gpu"}, {"resources": {"limits": {GPU: "0"}}}])
def test_gpus_count_behind_thousands_of_containers_that_have_none(decoy: dict[str, Any]) -> None:
    every: list[dict[str, Any]] = [{"name": f"c{n}", "workingDir": "x" * 100} | decoy for n in range(5_000)]
    every.append({"name": "last", "resources": {"limits": {GPU: 4}}})
    found = read(merged(PLAIN, "spec.containers", every))
    assert len(found.spec.containers) <= MOST_SUMMED + 1
    amounts = dict(pods.pod(found).request.resources)
    # Nobody reads what all of them ask for: it may be as much as there is.
    assert (amounts[GPU], amounts["cpu"], amounts["memory"]) == (4, MAX_AMOUNT, MAX_AMOUNT)


def test_of_a_pod_without_a_node_no_more_containers_are_read_than_report_that_they_are_too_many() -> None:
    pending = merged(PLAIN, "spec.nodeName", "")
    found = read(merged(pending, "spec.containers", [of_each(n, env=[{"value": "x" * 100}]) for n in range(5_000)]))
    assert len(found.spec.containers) <= MOST_CONTAINERS + 1
    record = pods.pod(found)
    assert record.problem is not None
    assert record.problem.field == "spec.containers"
    nominated = pending | {"status": {"nominatedNodeName": "n1"}}
    found = read(merged(nominated, "spec.containers", [{"name": "a", "resources": {"limits": {GPU: 1}}}] * 200))
    assert dict(pods.pod(found).request.resources)[GPU] == 200


def test_a_long_status_reports_what_the_pod_does() -> None:
    states = [{"name": "x" * 1000} for _ in range(500)]
    found = read(merged(PLAIN, "status.containerStatuses", states))
    assert (found.status.phase, found.status.start_time, found.status.container_statuses) == ("Running", "x", ())
    assert found.status.conditions == read(PLAIN).status.conditions


@pytest.mark.parametrize("kind", [kind for kind, long in LONG.items() if long.wire is None])
def test_other_long_objects_are_reported(kind: type) -> None:
    reader: Reader[Any] = Reader(kinds.PVCS, kind)
    document = {"metadata": {"name": "a", "namespace": "ml"}, "spec": {"nobodyReads": "x" * LONGEST_PART}}
    found = read(document, reader)
    assert found.key == ("ml", "a")
    assert f"the limit is {LONGEST_PART}" in found.problem


def test_short_ones_of_them_are_read() -> None:
    document = {"metadata": {"name": "a", "namespace": "ml"}, "spec": {"volumeName": "v"}}
    assert (
        Reader(kinds.PVCS, PersistentVolumeClaim).page(json.dumps({"metadata": {}, "items": [document]}).encode())[1]
        == []
    )


@pytest.mark.parametrize("parameters", ['{"a": [1, "x"],  "b": null}', "[" * 4_000 + "]" * 4_000])
def test_parameters_of_a_long_claim_are_handed_on_as_they_are_written(parameters: str) -> None:
    opaque = f'{{"driver": "x.example", "parameters": {parameters}}}'
    config = f'[{{"requests": ["r"], "opaque": {opaque}}}, {{"requests": ["{"x" * 20_000}"]}}]'
    devices = f'{{"requests": [{{"name": "r", "exactly": {{"deviceClassName": "gpu"}}}}], "config": {config}}}'
    claim = f'{{"metadata": {{"name": "a", "namespace": "ml"}}, "spec": {{"devices": {devices}}}}}'
    event = Reader(kinds.RESOURCE_CLAIMS, ResourceClaim).line(f'{{"type": "ADDED", "object": {claim}}}'.encode())
    assert isinstance(event, WatchEvent)
    first, second = event.object.spec.devices.config
    assert (first.requests, second.opaque) == (("r",), None)
    assert parameters in json_of(first).decode()
    assert event.object.spec.devices.requests == msgspec.json.decode(
        b'[{"name": "r", "exactly": {"deviceClassName": "gpu"}}]', type=tuple[DeviceRequest, ...]
    )


def test_of_a_claim_that_is_too_long_only_its_identity_is_kept() -> None:
    selectors = [{"cel": {"expression": "x" * 9_999}}] * 32
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu", "selectors": selectors}}]
    document = {"metadata": {"name": "a"}, "spec": {"devices": {"requests": requests}}}
    claim = msgspec.convert(document, ResourceClaim)
    assert claim_outline(claim) == ResourceClaim(claim.metadata)
    del selectors[1:]
    claim = msgspec.convert(document, ResourceClaim)
    assert claim_outline(claim) is claim
