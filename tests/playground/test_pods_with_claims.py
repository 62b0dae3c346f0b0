# SPDX-License-Identifier: Apache-2.0
"""Simulated kubelets and the claim controller: a pod runs with its devices, and they are free when it has."""

from typing import Any

import pytest

from dovetail.playground import RUN_SECONDS, Playground
from tests.contract.api import Api, Json
from tests.scheduler.scripted import until

CLAIMS = "resourceclaims.resource.k8s.io"
FINALIZER = "resource.kubernetes.io/delete-protection"


@pytest.fixture(autouse=True)
def nodes(playground: Playground) -> None:
    for name in ("n1", "n2"):
        playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})


def claim(playground: Playground, name: str = "c") -> None:
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "a"}}]}
    document: Json = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    playground.put(document | {"spec": {"devices": devices}})


def pod(playground: Playground, name: str = "p", run_s: str = "", **claimed: str) -> Json:
    spec: Json = {
        "nodeName": "n1", "containers": [{"name": "m", "image": "i"}],
        "resourceClaims": [{"name": "gpu"} | (claimed or {"resourceClaimName": "c"})],
    }  # fmt: skip
    annotations = {RUN_SECONDS: run_s} if run_s else {}
    return playground.put(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}
    )


def allocate(playground: Playground, consumer: Json, node: str = "n1", name: str = "c") -> None:
    document = playground.store.get(CLAIMS, "default", name)
    assert document is not None
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    result = {"request": "gpu", "driver": "d", "pool": node, "device": "g"}
    user = {"resource": "pods", "name": consumer["metadata"]["name"], "uid": consumer["metadata"]["uid"]}
    status = {
        "allocation": {
            "devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]}
        },
        "reservedFor": [user],
    }  # fmt: skip
    meta = document["metadata"] | {"finalizers": [FINALIZER]}
    playground.store.put_raw(CLAIMS, document | {"metadata": meta, "status": status})


def phase(playground: Playground, name: str = "p") -> Any:
    return (playground.store.get("pods", "default", name) or {}).get("status", {}).get("phase")


async def idle(api: Api) -> None:
    """Long enough for what would happen to happen."""
    for _ in range(10):
        await api.get(api.path("pods"))


async def test_a_pod_starts_when_its_claim_is_reserved_for_it(playground: Playground, api: Api) -> None:
    claim(playground)
    mine = pod(playground)
    await idle(api)
    assert phase(playground) == "Pending"
    allocate(playground, mine)
    await until(lambda: phase(playground) == "Running")


@pytest.mark.parametrize("wrong", ["another pod", "another node"])
async def test_devices_of_others_do_not_start_it(playground: Playground, api: Api, wrong: str) -> None:
    claim(playground)
    mine = pod(playground)
    other = {"metadata": {"name": "p", "uid": "another"}}
    allocate(playground, other if wrong == "another pod" else mine, "n2" if wrong == "another node" else "n1")
    await idle(api)
    assert phase(playground) == "Pending"


async def test_what_a_pod_had_is_free_when_it_has_run(playground: Playground) -> None:
    claim(playground)
    allocate(playground, pod(playground, run_s="0.01"))
    await until(lambda: phase(playground) == "Succeeded")
    await until(lambda: not (playground.store.get(CLAIMS, "default", "c") or {}).get("status"))


async def test_a_claim_from_a_template_goes_with_its_pod(playground: Playground) -> None:
    """Also when the template comes after the pod."""
    for name, run_s in (("runs", "0.01"), ("deleted", "")):
        pod(playground, name, run_s, resourceClaimTemplateName="t")
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "t"}}
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "a"}}]}
    playground.put(template | {"spec": {"spec": {"devices": devices}}})
    claims = playground.store.collection(CLAIMS).objects
    await until(lambda: len(claims) == 2)
    for made in list(claims.values()):
        (owner,) = made["metadata"]["ownerReferences"]
        allocate(playground, {"metadata": owner}, name=made["metadata"]["name"])
    await until(lambda: phase(playground, "runs") == "Succeeded" and len(claims) == 1)
    await until(lambda: phase(playground, "deleted") == "Running")
    playground.delete("pods", "default", "deleted")
    await until(lambda: not claims)
