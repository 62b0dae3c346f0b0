# SPDX-License-Identifier: Apache-2.0
"""Each row of the table of kinds against what the kind's CustomResourceDefinition has of it.

Sources, read as of 2026-11: JobSet kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go; TrainJob
kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go; RayJob and its rules ray-project/kuberay,
ray-operator/controllers/ray/utils/validation.go. Of RayCluster, the kinds of the training operator and LeaderWorkerSet
the fields are from their API types as the table has them; a kind whose definition lacks the field is refused below.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import yaml

from dovetail.idlepolicy.reading import PodsOwner
from dovetail.idlepolicy.records import FieldDropped, stop
from dovetail.idlepolicy.stoppable import STOPPABLE, SUSPEND, Stoppable
from dovetail.jobs.kinds import at
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig, load_config
from dovetail.playground import Playground
from tests.idlepolicy.world import DEFINITIONS, HOUR, Document, World, definition, workload
from tools.controlplane.plane import Plane

START = 1_900_000_000_000
CUSTOM = tuple(one for one in STOPPABLE if one.way is not None and "." in one.resource.group)
(LACKING,) = (one for one in CUSTOM if one.resource.kind == "XGBoostJob")
RAY = {"shutdownAfterJobFinishes": True}
REAL = "kinds-of-idle-policy"


def field_of(kind: Stoppable) -> str:
    """The field of the spec by which it is stopped."""
    assert kind.way is not None
    return kind.job.suspend if kind.way.consent == SUSPEND else "spec.replicas"


def defined(kind: Stoppable, path: str) -> Document:
    """The definition of the kind, with this field alone: a real API server drops all others."""
    one, replicas = kind.resource, {"type": "integer", "format": "int32", "minimum": 0}
    field: Document = replicas if path == "spec.replicas" else {"type": "boolean"}
    for step in reversed(path.split(".")):
        field = {"type": "object", "properties": {step: field}}
    made = definition(one.group, one.version, one.kind, one.plural)
    made["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": field}
    return made


class Kinds(World):
    def __init__(self, playground: Playground, client: Client) -> None:
        self.playground = playground
        super().__init__(playground.put, client, START)

    async def idle(self, kind: Stoppable, **spec: Any) -> Document:
        """What becomes of an object of this kind whose pod is idle for six hours; its owner consents."""
        assert kind.way is not None
        one = kind.resource
        made = workload(one.kind, "x", spec, api=one.api_version, when_idle=kind.way.consent)
        made["status"] = {"rayClusterName": "x"}
        owner = self.put(made)
        selector = kind.job.selector(owner)
        key, _, value = selector.partition("=")
        uid = self.pod("x-0", owner, labels={key: value})
        for hours in (2, 3, 1):
            await self.after(hours, ("n1", {uid: START}))
        found = self.playground.store.get(f"{one.plural}.{one.group}", "ml", "x")
        assert found is not None
        return found


@pytest.fixture
async def kinds() -> AsyncIterator[Kinds]:
    playground = Playground(clock=lambda: START / 1000)
    await playground.start(still=True)
    gpu_nodes = DEFINITIONS[0]
    for one in ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}, gpu_nodes):
        playground.put(one)
    async with Client(ClusterConfig(server=playground.url)) as client:
        yield Kinds(playground, client)
    await playground.stop()


def test_the_table_has_a_row_for_each_of_them() -> None:
    assert {one.resource.kind for one in CUSTOM} == {
        "JobSet", "TrainJob", "RayJob", "RayCluster", "LeaderWorkerSet", "Notebook",
        "PyTorchJob", "MPIJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob",
    }  # fmt: skip


@pytest.mark.parametrize("kind", CUSTOM, ids=lambda one: one.resource.kind)
@pytest.mark.slow
async def test_what_is_written_fits_the_kind_and_its_pods_are_found(kinds: Kinds, kind: Stoppable) -> None:
    assert kind.way is not None
    kinds.put(defined(kind, field_of(kind)))
    found = await kinds.idle(kind, **RAY)
    assert kind.way.holds(at(found, kind.way.path))
    assert "dovetail.dev/idle-stopped" in found["metadata"]["annotations"]
    (resource, name) = (f"{kind.resource.plural}.{kind.resource.group}", "x")
    # What undoes it names the same field.
    assert kind.way.path.rpartition(".")[2] in kind.way.undo(resource, name, None)


@pytest.fixture
def defined_kinds(plane: Plane) -> Iterator[Plane]:
    """The plane with definitions of these kinds whose schema has nothing but the field; that of XGBoostJob lacks it."""
    made = [defined(one, "spec.runPolicy.other" if one is LACKING else field_of(one)) for one in CUSTOM]
    text = yaml.safe_dump_all(made)
    plane.kubectl("create", "namespace", REAL)
    plane.kubectl("apply", "--server-side", "-f", "-", input=text)
    plane.kubectl("wait", "--for=condition=Established", "-f", "-", "--timeout=60s", input=text)
    yield plane
    # Other tests on this plane have whole definitions of such kinds.
    plane.kubectl("delete", "-f", "-", input=text)
    plane.kubectl("delete", "namespace", REAL, "--wait=false")


@pytest.mark.plane
async def test_a_real_server_keeps_the_field_where_the_kind_has_it(defined_kinds: Plane) -> None:
    """Where the schema lacks it, as RunPolicy of early training operators, the API server drops it and answers as if it
    were written: that is no stop."""
    plane = defined_kinds
    async with Client(load_config(str(plane.kubeconfig))) as client:
        for kind in CUSTOM:
            assert kind.way is not None
            resource, consent = kind.resource, kind.way.consent
            document = workload(resource.kind, "x", api=resource.api_version, when_idle=consent)
            document["metadata"]["namespace"] = REAL
            stored = plane.apply(resource.path(REAL, "x"), document)
            owner = PodsOwner(kind, stored, REAL, "x", (), {}, consent)
            if kind is LACKING:
                with pytest.raises(FieldDropped, match=r"XGBoostJob has no spec\.runPolicy\.suspend"):
                    await stop(client, owner, START)
            else:
                await stop(client, owner, START)
            found = plane.get(resource.path(REAL, "x"))
            assert kind.way.holds(at(found, kind.way.path)) == (kind is not LACKING), resource.kind
            assert ("dovetail.dev/idle-stopped" in found["metadata"]["annotations"]) == (kind is not LACKING)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, "only with spec.shutdownAfterJobFinishes: true"),
        ({"shutdownAfterJobFinishes": False}, "only with spec.shutdownAfterJobFinishes: true"),
        ({**RAY, "clusterSelector": {"ray.io/cluster": "shared"}}, "on a cluster of others (spec.clusterSelector)"),
    ],
)
async def test_a_ray_job_that_kuberay_does_not_suspend_is_left_alone(
    kinds: Kinds, spec: dict[str, Any], why: str
) -> None:
    """Suspended, its spec would be invalid, and the job would fail."""
    (ray,) = (one for one in CUSTOM if one.resource.kind == "RayJob")
    kinds.put(defined(ray, "spec.suspend"))
    found = await kinds.idle(ray, **spec)
    assert "suspend" not in found["spec"] and kinds.now_ms == START + 6 * HOUR
    (event,) = [one for one in kinds.playground.store.list("events") if one["reason"] == "GPUsIdle"]
    assert event["message"].endswith(f"{why}.") and "RayJob ml/x is not suspended: KubeRay" in event["message"]
