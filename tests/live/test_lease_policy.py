# SPDX-License-Identifier: Apache-2.0
"""deploy/leases.yaml on the real API server: a software agent writes what it asks for, the scheduler what it decides,
and no agent sees the objects of another."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import yaml

from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.resources import CONTROL_PLANES, GPU_LEASES, LEASE_REQUESTS
from tests.docs.pages import page
from tools.controlplane.plane import KubectlFailed, Plane

pytestmark = pytest.mark.plane
Document = dict[str, Any]
PLANE, REQUEST, LEASE = (
    yaml.safe_load(block.text) for block in page("docs/reference/leases.md").blocks if block.language == "yaml"
)
HERE, ELSEWHERE = "agent-policy", "agent-policy-other"
SCHEDULER = "--as=system:serviceaccount:dovetail-system:dovetail-scheduler"
AGENT, OTHER = f"--as=system:serviceaccount:{HERE}:agent", f"--as=system:serviceaccount:{ELSEWHERE}:agent"
SPENDER = "--as=namespace-admin"
"""Has all rights in the namespace, and none over queues."""


def here(document: Document, name: str, **spec: Any) -> Document:
    made = deepcopy(document)
    made["metadata"] = {"name": name, "namespace": HERE}
    made["spec"] |= spec
    return made


class Objects:
    """What users do to objects in the namespace."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane

    def create(self, document: Document, *options: str) -> str:
        # Without its own look at the schema, which the server has, kubectl takes half of the time.
        fixed = ("create", "--validate=ignore", "--filename=-")
        return self.plane.kubectl(*fixed, *options, input=json.dumps(document))

    def patch(self, what: str, patch: Document, *options: str) -> str:
        name = what.split("/")
        return self.plane.kubectl(
            "patch", *name, f"--namespace={HERE}", "--type=merge", f"--patch={json.dumps(patch)}", *options
        )

    async def report(self, what: str, status: Document) -> None:
        """The scheduler writes a status, with its own token: kubectl would also read the subresource."""
        kind, name = what.split("/")
        (resource,) = (one for one in (CONTROL_PLANES, LEASE_REQUESTS, GPU_LEASES) if one.kind.lower() == kind)
        config = load_config(str(self.plane.service_account_kubeconfig("dovetail-system", "dovetail-scheduler")))
        async with Client(config) as client:
            path = resource.path(HERE, name, "status")
            await client.request("PATCH", path, {"status": status}, content_type=MERGE_PATCH)

    def read(self, what: str, *options: str, namespace: str = HERE) -> str:
        return self.plane.kubectl("get", what, f"--namespace={namespace}", *options)


@pytest.fixture(scope="module")
def objects(deployed_plane: Plane) -> Iterator[Objects]:
    plane = deployed_plane
    for kind in ("agentcontrolplanes", "leaserequests", "gpuleases"):
        plane.kubectl("wait", "--for=condition=Established", f"crd/{kind}.dovetail.dev", "--timeout=60s")
    for namespace in (HERE, ELSEWHERE):
        plane.kubectl("create", "namespace", namespace)
        account = f"--serviceaccount={namespace}:agent"
        plane.kubectl(
            "create",
            "rolebinding",
            "agent",
            "--clusterrole=dovetail-software-agent",
            account,
            f"--namespace={namespace}",
        )
    plane.kubectl(
        "create", "rolebinding", "all", "--clusterrole=cluster-admin", "--user=namespace-admin", f"--namespace={HERE}"
    )
    made = Objects(plane)
    # Definition, role and policy are in force some time after they were written.
    for _ in range(300):
        try:
            made.create(here(LEASE, "probe"), "--dry-run=server")
        except KubectlFailed as error:
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
        plane.kubectl("delete", "namespace", namespace, "--wait=false")


async def test_an_agent_asks_answers_and_withdraws(objects: Objects) -> None:
    request = here(REQUEST, "asks")
    answer = request["spec"].pop("answer")
    objects.create(request, AGENT)
    await objects.report("leaserequest/asks", {"state": "Offered"})
    objects.patch("leaserequest/asks", {"spec": {"answer": answer}}, AGENT)
    assert "asks" in objects.read("leaserequests", AGENT)
    objects.plane.kubectl("delete", "leaserequest", "asks", f"--namespace={HERE}", AGENT)


@pytest.mark.parametrize("what", ["leaserequest/r", "gpulease/held", "agentcontrolplane/tuner"])
@pytest.mark.parametrize("user", [AGENT, SPENDER, "--as=root"])
async def test_only_the_scheduler_writes_a_status(objects: Objects, what: str, user: str) -> None:
    if what == "leaserequest/r" and "leaserequest.dovetail.dev/r" not in objects.read("leaserequests", "--output=name"):
        objects.create(here(REQUEST, "r"))
    state = {"phase": "Ready"} if "plane" in what else {"state": "Active" if "lease/" in what else "Granted"}
    groups = ["--as-group=system:masters"] if user == "--as=root" else []
    with pytest.raises(KubectlFailed, match=r"only the scheduler writes the status|is forbidden"):
        objects.patch(what, {"status": state}, "--subresource=status", user, *groups)
    await objects.report(what, state)


def test_an_agent_makes_and_deletes_no_lease_and_changes_no_plane(objects: Objects) -> None:
    for user, groups in ((AGENT, ()), (SPENDER, ()), ("--as=root", ("--as-group=system:masters",))):
        with pytest.raises(KubectlFailed, match=r"only the scheduler makes GPULeases|is forbidden"):
            objects.create(here(LEASE, "forged"), user, *groups)
    for verb in (("delete",), ("patch", "--type=merge", '--patch={"spec":{"weight":9}}')):
        for kind in ("agentcontrolplane/tuner", *(("gpulease/held",) if verb == ("delete",) else ())):
            with pytest.raises(KubectlFailed, match="forbidden"):
                objects.plane.kubectl(verb[0], kind, f"--namespace={HERE}", *verb[1:], AGENT)


def test_an_agent_acts_on_its_lease_and_changes_nothing_else_of_it(objects: Objects) -> None:
    fence = LEASE["spec"]["fence"]
    returned = {"number": 1, "fence": fence, "action": "return"}
    objects.patch("gpulease/held", {"spec": {"action": returned}}, AGENT, "--dry-run=server")
    for metadata in ({"labels": {"a": "b"}}, {"annotations": {"a": "b"}}, {"finalizers": ["example.com/keep"]}):
        with pytest.raises(KubectlFailed, match=r"of a GPULease only spec\.action may be written"):
            objects.patch("gpulease/held", {"metadata": metadata}, AGENT)
    for spec in ({"fence": fence + 1}, {"grace": "24h"}, {"devices": LEASE["spec"]["devices"][:1]}):
        with pytest.raises(KubectlFailed, match="must not change"):
            objects.patch("gpulease/held", {"spec": spec}, AGENT)


async def test_an_agent_cannot_fill_its_lease_so_that_no_status_fits(objects: Objects) -> None:
    """What an agent can make larger are the managed fields: the API server leaves them out where they are too many."""
    path = f"/apis/dovetail.dev/v1alpha1/namespaces/{HERE}/gpuleases/held"
    objects.plane.kubectl("create", "serviceaccount", "agent", f"--namespace={HERE}")
    config = load_config(str(objects.plane.service_account_kubeconfig(HERE, "agent")))
    were = []
    async with Client(config) as agent:
        for count in (12_000, 15_400):
            live = objects.plane.get(path)
            live["metadata"]["managedFields"] = [
                {
                    "manager": f"m{number}", "operation": "Apply", "apiVersion": "dovetail.dev/v1alpha1",
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}},
                }
                for number in range(count)
            ]  # fmt: skip
            await agent.request("PUT", path, live)
            kept = len(objects.plane.get(path)["metadata"].get("managedFields", []))
            assert kept in (0, count, count + 1), kept
            were.append(kept > 0)
            await objects.report("gpulease/held", {"state": "Ended", "cause": "Returned", "refused": "x" * 1000})
            assert objects.plane.get(path)["status"]["state"] == "Ended"
            await objects.report("gpulease/held", {"state": "Active"})
    assert were == [True, False], "the last one was too large"


def test_a_control_plane_is_written_by_those_that_may_write_queues(objects: Objects) -> None:
    with pytest.raises(KubectlFailed, match="only users that may update queues write AgentControlPlanes"):
        objects.create(here(PLANE, "mine"), SPENDER)
    with pytest.raises(KubectlFailed, match="only users that may update queues write AgentControlPlanes"):
        objects.patch("agentcontrolplane/tuner", {"spec": {"weight": 1000}}, SPENDER)
    objects.patch("agentcontrolplane/tuner", {"spec": {"weight": 3}})
    objects.patch("agentcontrolplane/tuner", {"metadata": {"labels": {"a": "b"}}}, SPENDER)


@pytest.mark.parametrize("kind", ["agentcontrolplanes", "leaserequests", "gpuleases"])
def test_no_agent_sees_the_objects_of_another(objects: Objects, kind: str) -> None:
    objects.read(kind, AGENT)
    for options in ((OTHER,), (AGENT, "--all-namespaces")):
        with pytest.raises(KubectlFailed, match="forbidden"):
            objects.read(kind, *options)
    with pytest.raises(KubectlFailed, match="forbidden"):
        objects.create(here(REQUEST, "foreign"), OTHER)


def test_an_agent_is_heard_by_the_lease_of_its_plane(objects: Objects) -> None:
    beat = {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "tuner", "namespace": HERE},
        "spec": {"holderIdentity": "agent", "renewTime": "2026-01-31T12:00:00.000000Z"},
    }  # fmt: skip
    objects.create(beat, AGENT)
    objects.patch("lease/tuner", {"spec": {"renewTime": "2026-01-31T12:00:10.000000Z"}}, AGENT)
    assert "tuner" in objects.read("leases.coordination.k8s.io", SCHEDULER)
    with pytest.raises(KubectlFailed, match="forbidden"):
        objects.patch("lease/tuner", {"spec": {"holderIdentity": "other"}}, OTHER)


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
def test_pods_of_an_agent_get_devices_from_the_scheduler_that_knows_the_leases(
    objects: Objects, spec: Document, why: str
) -> None:
    """Also of a user with all rights; in a namespace without a control plane nothing is refused."""
    objects.plane.kubectl("apply", "-f", "deploy/agent-namespaces/policy.yaml")
    if not any(one["metadata"]["name"] == "pods" for one in _planes(objects)):
        objects.create(here(PLANE, "pods"))
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
                objects.create(document, "--dry-run=server")
                shown = ""
            except KubectlFailed as error:
                shown = str(error)
            if (refused in shown if refused else not shown) or time.monotonic() > deadline_s:
                break
            time.sleep(0.2)
        assert refused in shown if refused else not shown


def _planes(objects: Objects) -> list[Document]:
    found = objects.plane.get(f"/apis/dovetail.dev/v1alpha1/namespaces/{HERE}/agentcontrolplanes")
    return list(found["items"]) if found else []
