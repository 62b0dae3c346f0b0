# SPDX-License-Identifier: Apache-2.0
"""Devices and claims in manifests: claims are made from templates, and contradictions are reported."""

from pathlib import Path

import pytest

from dovetail.core import events as ev
from dovetail.kube.manifests.cluster import Manifests, read

DRA = "apiVersion: resource.k8s.io/v1"
REQUEST = "{name: gpu, exactly: {deviceClassName: gpu}}"
TEMPLATE = (
    f"{DRA}\nkind: ResourceClaimTemplate\nmetadata: {{name: one}}\n"
    f"spec: {{spec: {{devices: {{requests: [{REQUEST}]}}}}}}"
)
CLASS = f"{DRA}\nkind: DeviceClass\nmetadata: {{name: gpu}}\nspec: {{}}"
SLICE = f"{DRA}\nkind: ResourceSlice\nmetadata: {{name: s}}\nspec: {{driver: d.io, nodeName: n1, pool: {{name: n1}}}}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cluster.yaml"


def manifests_of(file: Path, *documents: str) -> Manifests:
    file.write_text("\n---\n".join(documents))
    return read([str(file)])


def pod(claims: str, name: str = "p", statuses: str = "[]") -> str:
    spec = f"{{containers: [{{name: m}}], resourceClaims: {claims}}}"
    status = f"{{resourceClaimStatuses: {statuses}}}"
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {spec}\nstatus: {status}"


def claims(found: Manifests) -> dict[str, str]:
    """Owner by claim."""
    return {event.claim.key: event.claim.owner_pod for event in found.events if isinstance(event, ev.ClaimChanged)}


def test_each_pod_gets_its_claim_from_the_template(file: Path) -> None:
    named = "[{name: gpu, resourceClaimTemplateName: one}]"
    found = manifests_of(file, TEMPLATE, CLASS, SLICE, pod(named, "p"), pod(named, "q"))
    assert found.problems == () and found.skipped == {}
    pods = {event.pod.uid: event.pod.device_claims for event in found.events if isinstance(event, ev.PodChanged)}
    assert claims(found) == {"default/p-gpu": "Pod/default/p", "default/q-gpu": "Pod/default/q"}
    assert pods == {"Pod/default/p": ("default/p-gpu",), "Pod/default/q": ("default/q-gpu",)}
    kinds = [type(event) for event in found.events]
    assert kinds.index(ev.DeviceClassChanged) < kinds.index(ev.PodChanged)
    assert kinds.index(ev.SliceChanged) < kinds.index(ev.PodChanged)


def test_a_claim_that_was_made_already_is_the_one(file: Path) -> None:
    made = f"{DRA}\nkind: ResourceClaim\nmetadata: {{name: p-gpu-x}}\nspec: {{devices: {{requests: [{REQUEST}]}}}}"
    named = "[{name: gpu, resourceClaimTemplateName: one}]"
    found = manifests_of(file, TEMPLATE, made, pod(named, statuses="[{name: gpu, resourceClaimName: p-gpu-x}]"))
    assert claims(found) == {"default/p-gpu-x": ""}


def test_a_missing_object_is_reported_with_its_place(file: Path) -> None:
    found = manifests_of(file, pod("[{name: a, resourceClaimTemplateName: t}, {name: b, resourceClaimName: c}]"))
    assert [str(problem).partition(": ")[2] for problem in found.problems] == [
        "Pod default/p: spec.resourceClaims: 'ResourceClaimTemplate t' is not in the input",
        "Pod default/p: spec.resourceClaims: 'c' is not in the input",
    ]
    assert {problem.line for problem in found.problems} == {4}


def test_a_claim_that_cannot_be_honoured_is_reported_with_its_field(file: Path) -> None:
    bad = f"{DRA}\nkind: ResourceClaim\nmetadata: {{name: c}}\nspec:\n  devices:\n    requests:\n    - {{name: gpu}}"
    (problem,) = manifests_of(file, bad).problems
    assert (problem.object, problem.field, problem.line) == ("ResourceClaim default/c", "spec.devices.requests[0]", 7)


def test_an_older_version_is_not_read_as_if_it_were_this_one(file: Path) -> None:
    (problem,) = manifests_of(file, CLASS.replace("/v1", "/v1beta1")).problems
    assert "only v1 can be read" in problem.message
