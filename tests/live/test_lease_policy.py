# SPDX-License-Identifier: Apache-2.0
"""deploy/leases.yaml on the real API server: a software agent writes what it asks for, the scheduler what it decides,
and no agent sees the objects of another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import yaml

from dovetail.kube.api.client import MERGE_PATCH
from dovetail.kube.api.resources import CONTROL_PLANES, GPU_LEASES, LEASE_REQUESTS, LEASES, PODS
from tests.docs.pages import page
from tools.controlplane.plane import Plane, RequestFailed

pytestmark = pytest.mark.plane
Document = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
PLANE, REQUEST, LEASE = (
    yaml.safe_load(block.text) for block in page("docs/reference/leases.md").blocks if block.language == "yaml"
)
HERE, ELSEWHERE = "agent-policy", "agent-policy-other"
SCHEDULER = "system:serviceaccount:dovetail-system:dovetail-scheduler"
AGENT, OTHER = f"system:serviceaccount:{HERE}:agent", f"system:serviceaccount:{ELSEWHERE}:agent"
SPENDER = "namespace-admin"
"""Has all rights in the namespace, and none over queues."""
ROOT = "root"
"""Of the group system:masters."""
USERS: dict[str, list[str]] = {SPENDER: [], ROOT: ["system:masters"]} | {
    user: ["system:serviceaccounts", f"system:serviceaccounts:{user.split(':')[2]}"]
    for user in (SCHEDULER, AGENT, OTHER)
}
KINDS = {one.kind: one for one in (CONTROL_PLANES, LEASE_REQUESTS, GPU_LEASES, LEASES, PODS)}


def here(document: Document, name: str, **spec: Any) -> Document:
    made = deepcopy(document)
    made["metadata"] = {"name": name, "namespace": HERE}
    made["spec"] |= spec
    return made


class Objects:
    """What users do to objects in the namespace; without a user the administrator. Each has a client certificate."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        for user, groups in USERS.items():
            plane.kubeconfig_for(user, groups)

    def create(self, document: Document, user: str = "", *, dry_run: bool = False) -> None:
        path = KINDS[document["kind"]].path(document["metadata"]["namespace"])
        self.plane.request("POST", f"{path}?dryRun=All" if dry_run else path, document, user=user)

    def patch(self, what: str, patch: Document, user: str = "", *, dry_run: bool = False) -> None:
        """`what` is KIND/NAME or KIND/NAME/SUBRESOURCE."""
        path = _path(what)
        self.plane.request("PATCH", f"{path}?dryRun=All" if dry_run else path, patch, MERGE_PATCH, user)

    def delete(self, what: str, user: str) -> None:
        self.plane.request("DELETE", _path(what), user=user)

    def report(self, what: str, status: Document) -> None:
        """The scheduler writes a status."""
        self.patch(f"{what}/status", {"status": status}, SCHEDULER)

    def names(self, kind: str, user: str = "", *, namespace: str | None = HERE) -> list[str]:
        found = self.plane.request("GET", KINDS[kind].path(namespace), user=user)
        return [one["metadata"]["name"] for one in found["items"]]


def _path(what: str) -> str:
    kind, *names = what.split("/")
    return KINDS[kind].path(HERE, *names)


@pytest.fixture(scope="module")
def objects(deployed_plane: Plane) -> Iterator[Objects]:
    plane = deployed_plane
    for namespace in (HERE, ELSEWHERE):
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        account = {"kind": "ServiceAccount", "namespace": namespace, "name": "agent"}
        _bind(plane, namespace, "dovetail-software-agent", account)
    _bind(plane, HERE, "cluster-admin", {"apiGroup": RBAC, "kind": "User", "name": SPENDER})
    made = Objects(plane)
    # Definition, role and policy are in force some time after they were written.
    for _ in range(300):
        try:
            made.create(here(LEASE, "probe"), dry_run=True)
        except RequestFailed as error:
            if "only the scheduler makes GPULeases" in str(error):
                break
        time.sleep(0.1)
    else:
        raise AssertionError("the policy is not in force")
    made.create(here(PLANE, "tuner"))
    spec = {key: value for key, value in LEASE["spec"].items() if key != "action"}
    made.create(here(LEASE, "held") | {"spec": spec}, SCHEDULER)
    yield made
    for namespace in (HERE, ELSEWHERE):
        plane.request("DELETE", f"/api/v1/namespaces/{namespace}")


def _bind(plane: Plane, namespace: str, role: str, subject: Document) -> None:
    """The subject has the ClusterRole in the namespace."""
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}
    binding = {"metadata": {"name": role}, "roleRef": reference, "subjects": [subject]}
    plane.request("POST", f"/apis/{RBAC}/v1/namespaces/{namespace}/rolebindings", binding)


def test_an_agent_asks_answers_and_withdraws(objects: Objects) -> None:
    request = here(REQUEST, "asks")
    answer = request["spec"].pop("answer")
    objects.create(request, AGENT)
    objects.report("LeaseRequest/asks", {"state": "Offered"})
    objects.patch("LeaseRequest/asks", {"spec": {"answer": answer}}, AGENT)
    assert "asks" in objects.names("LeaseRequest", AGENT)
    objects.delete("LeaseRequest/asks", AGENT)


@pytest.mark.parametrize("what", ["LeaseRequest/r", "GPULease/held", "AgentControlPlane/tuner"])
@pytest.mark.parametrize("user", [AGENT, SPENDER, ROOT])
def test_only_the_scheduler_writes_a_status(objects: Objects, what: str, user: str) -> None:
    if what == "LeaseRequest/r" and "r" not in objects.names("LeaseRequest"):
        objects.create(here(REQUEST, "r"))
    state = {"phase": "Ready"} if "Plane" in what else {"state": "Active" if "Lease/" in what else "Granted"}
    with pytest.raises(RequestFailed, match=r"only the scheduler writes the status|is forbidden"):
        objects.patch(f"{what}/status", {"status": state}, user)
    objects.report(what, state)


def test_an_agent_makes_and_deletes_no_lease_and_changes_no_plane(objects: Objects) -> None:
    for user in (AGENT, SPENDER, ROOT):
        with pytest.raises(RequestFailed, match=r"only the scheduler makes GPULeases|is forbidden"):
            objects.create(here(LEASE, "forged"), user)
    for what in ("AgentControlPlane/tuner", "GPULease/held"):
        with pytest.raises(RequestFailed, match="forbidden"):
            objects.delete(what, AGENT)
    with pytest.raises(RequestFailed, match="forbidden"):
        objects.patch("AgentControlPlane/tuner", {"spec": {"weight": 9}}, AGENT)


def test_an_agent_acts_on_its_lease_and_changes_nothing_else_of_it(objects: Objects) -> None:
    fence = LEASE["spec"]["fence"]
    returned = {"number": 1, "fence": fence, "action": "return"}
    objects.patch("GPULease/held", {"spec": {"action": returned}}, AGENT, dry_run=True)
    for metadata in ({"labels": {"a": "b"}}, {"annotations": {"a": "b"}}, {"finalizers": ["example.com/keep"]}):
        with pytest.raises(RequestFailed, match=r"of a GPULease only spec\.action may be written"):
            objects.patch("GPULease/held", {"metadata": metadata}, AGENT)
    for spec in ({"fence": fence + 1}, {"grace": "24h"}, {"devices": LEASE["spec"]["devices"][:1]}):
        with pytest.raises(RequestFailed, match="must not change"):
            objects.patch("GPULease/held", {"spec": spec}, AGENT)


def test_an_agent_cannot_fill_its_lease_so_that_no_status_fits(objects: Objects) -> None:
    """What an agent can make larger are the managed fields: the API server leaves them out where they are too large."""
    path, were = _path("GPULease/held"), []
    for count in (1_150, 1_550):
        live = objects.plane.get(path)
        live["metadata"]["managedFields"] = [
            {
                "manager": f"m{number}", "operation": "Apply", "apiVersion": "dovetail.dev/v1alpha1",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:" + "x" * 900: {}}},
            }
            for number in range(count)
        ]  # fmt: skip
        objects.plane.request("PUT", path, live, user=AGENT)
        kept = len(objects.plane.get(path)["metadata"].get("managedFields", []))
        assert kept in (0, count, count + 1), kept
        were.append(kept > 0)
        objects.report("GPULease/held", {"state": "Ended", "cause": "Returned", "refused": "x" * 1000})
        assert objects.plane.get(path)["status"]["state"] == "Ended"
        objects.report("GPULease/held", {"state": "Active"})
    assert were == [True, False], "the last one was too large"


def test_a_control_plane_is_written_by_those_that_may_write_queues(objects: Objects) -> None:
    with pytest.raises(RequestFailed, match="only users that may update queues write AgentControlPlanes"):
        objects.create(here(PLANE, "mine"), SPENDER)
    with pytest.raises(RequestFailed, match="only users that may update queues write AgentControlPlanes"):
        objects.patch("AgentControlPlane/tuner", {"spec": {"weight": 1000}}, SPENDER)
    objects.patch("AgentControlPlane/tuner", {"spec": {"weight": 3}})
    objects.patch("AgentControlPlane/tuner", {"metadata": {"labels": {"a": "b"}}}, SPENDER)


@pytest.mark.parametrize("kind", ["AgentControlPlane", "LeaseRequest", "GPULease"])
def test_no_agent_sees_the_objects_of_another(objects: Objects, kind: str) -> None:
    objects.names(kind, AGENT)
    for user, namespace in ((OTHER, HERE), (AGENT, None)):
        with pytest.raises(RequestFailed, match="forbidden"):
            objects.names(kind, user, namespace=namespace)
    with pytest.raises(RequestFailed, match="forbidden"):
        objects.create(here(REQUEST, "foreign"), OTHER)


def test_an_agent_is_heard_by_the_lease_of_its_plane(objects: Objects) -> None:
    beat = {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "tuner", "namespace": HERE},
        "spec": {"holderIdentity": "agent", "renewTime": "2026-01-31T12:00:00.000000Z"},
    }  # fmt: skip
    objects.create(beat, AGENT)
    objects.patch("Lease/tuner", {"spec": {"renewTime": "2026-01-31T12:00:10.000000Z"}}, AGENT)
    assert "tuner" in objects.names("Lease", SCHEDULER)
    with pytest.raises(RequestFailed, match="forbidden"):
        objects.patch("Lease/tuner", {"spec": {"holderIdentity": "other"}}, OTHER)


@pytest.fixture(scope="module")
def policy_of_pods(objects: Objects) -> None:
    objects.plane.kubectl("apply", "-f", "deploy/agent-namespaces/policy.yaml")
    objects.create(here(PLANE, "pods"))


@pytest.mark.parametrize(
    "spec, why",
    [
        ({"schedulerName": "dovetail"}, ""),
        ({"schedulerName": "default-scheduler"}, "set schedulerName to dovetail"),
        ({"schedulerName": "dovetail", "nodeName": "somewhere"}, "and no nodeName"),
        (
            {"schedulerName": "dovetail", "resourceClaims": [{"name": "g", "resourceClaimName": "g"}]},
            "no resourceClaims",
        ),
    ],
)
@pytest.mark.usefixtures("policy_of_pods")
def test_pods_of_an_agent_get_devices_from_the_scheduler_that_knows_the_leases(
    objects: Objects, spec: Document, why: str
) -> None:
    """Also of a user with all rights; in a namespace without a control plane nothing is refused."""
    container = {"name": "m", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    if "resourceClaims" in spec:
        container["resources"] = {"claims": [{"name": "g"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container], "schedulerName": "dovetail"} | spec}
    for namespace, refused in ((HERE, why), ("default", "")):
        document = pod | {"metadata": {"generateName": "p-", "namespace": namespace}}
        deadline_s = time.monotonic() + 30
        while True:
            # The API server reads a policy and its parameters after a moment.
            try:
                objects.create(document, dry_run=True)
                shown = ""
            except RequestFailed as error:
                shown = str(error)
            if (refused in shown if refused else not shown) or time.monotonic() > deadline_s:
                break
            time.sleep(0.2)
        assert refused in shown if refused else not shown
