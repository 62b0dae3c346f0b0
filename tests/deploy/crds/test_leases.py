# SPDX-License-Identifier: Apache-2.0
"""The definitions of AgentControlPlane, LeaseRequest and GPULease: the same fields as the wire structs and the
reference have, everything bounded, and a real API server refuses what contradicts itself and what must not change."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
import yaml

from dovetail.core.bargaining.states import GpuLeaseState, RequestState
from dovetail.core.bargaining.types import (
    MOST_ALTERNATIVES,
    EndCause,
    GpuLease,
    Holding,
    LeaseAlternative,
    Offer,
    Revocation,
    ServiceClass,
)
from dovetail.core.decisions import EndLease, MakeOffers, RequestStatus
from dovetail.core.model import Instance
from dovetail.core.policy import Policy
from dovetail.core.reasons import Expected, Reason, Refusal, Sure, When
from dovetail.core.state import State
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.api.resources import CONTROL_PLANES, GPU_LEASES, LEASE_REQUESTS, Resource
from dovetail.kube.objects import leases as wire
from dovetail.kube.objects.base import Wire
from dovetail.kube.objects.queues import Amounts
from dovetail.kube.translate import lease_documents, leases
from tests.docs.pages import page
from tests.paths import ROOT
from tools.controlplane.plane import Plane, RequestFailed

Document = dict[str, Any]
NAMES = ("agentcontrolplane", "leaserequest", "gpulease")
PATHS = {name: ROOT / f"deploy/crds/{name}.yaml" for name in NAMES}
SCHEMAS: dict[str, Document] = {
    name: yaml.safe_load(path.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name, path in PATHS.items()
}
PLANE, REQUEST, LEASE = (
    yaml.safe_load(block.text) for block in page("docs/reference/leases.md").blocks if block.language == "yaml"
)
ALTERNATIVE = SCHEMAS["leaserequest"]["properties"]["spec"]["properties"]["alternatives"]["items"]
VALUES = {Amounts: "cpu", wire.LeaseAlternative: "count"}
"""Structs that the reference writes as one value, by their first fields."""
HALVES = [
    ("agentcontrolplane", "spec", wire.AgentControlPlaneSpec, "Spec of a control plane"),
    ("agentcontrolplane", "status", wire.AgentControlPlaneStatus, "Status of a control plane"),
    ("leaserequest", "spec", wire.LeaseRequestSpec, "Spec of a request"),
    ("leaserequest", "status", wire.LeaseRequestStatus, "Status of a request"),
    ("gpulease", "spec", wire.GPULeaseSpec, "Spec of a lease"),
    ("gpulease", "status", wire.GPULeaseStatus, "Status of a lease"),
]


def half(name: str, which: str) -> Document:
    found: Document = SCHEMAS[name]["properties"][which]
    return found


def leaves(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The paths of everything that has no fields below it, as the reference writes them."""
    below = schema.get("properties")
    if below and (not path or next(iter(below)) not in VALUES.values()):
        for name, inner in below.items():
            yield from leaves(inner, f"{path}.{name}" if path else name)
    elif "items" in schema and "properties" in schema["items"]:
        yield from leaves(schema["items"], f"{path}[]")
    else:
        yield path


def of_struct(hint: Any, path: str = "") -> Iterator[str]:
    """The same of a wire struct."""
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    inner = get_args(hint)[0] if get_origin(hint) is tuple else None
    if isinstance(hint, type) and issubclass(hint, Wire) and (not path or hint not in VALUES):
        hints = get_type_hints(hint)
        for field in msgspec.structs.fields(hint):
            yield from of_struct(hints[field.name], f"{path}.{field.encode_name}" if path else field.encode_name)
    elif isinstance(inner, type) and issubclass(inner, Wire):
        yield from of_struct(inner, f"{path}[]")
    else:
        yield path


@pytest.mark.parametrize(("name", "which", "struct", "section"), HALVES)
def test_schema_struct_and_reference_have_the_same_fields(
    name: str, which: str, struct: type[Wire], section: str
) -> None:
    fields = list(leaves(half(name, which)))
    assert list(of_struct(struct)) == fields
    rows = page("docs/reference/leases.md").section(section).rows("field")
    assert [row.code[0][0] for row in rows] == fields


def test_an_alternative_is_the_same_everywhere() -> None:
    fields = list(leaves(ALTERNATIVE))
    assert list(of_struct(wire.LeaseAlternative)) == fields
    rows = page("docs/reference/leases.md").section("Alternatives").rows("field of an alternative")
    assert [row.code[0][0] for row in rows] == fields
    request = SCHEMAS["leaserequest"]["properties"]
    leased = deepcopy(SCHEMAS["gpulease"]["properties"]["spec"]["properties"]["alternative"])
    assert leased["x-kubernetes-validations"].pop(0)["rule"] == "self == oldSelf"
    assert leased == ALTERNATIVE == request["spec"]["properties"]["answer"]["properties"]["counter"]
    assert request["status"]["properties"]["offers"]["items"]["properties"]["alternative"] == ALTERNATIVE


def test_enumerations_are_those_of_the_core() -> None:
    lease, request = half("gpulease", "status")["properties"], half("leaserequest", "status")["properties"]
    assert lease["state"]["enum"] == [one.value for one in GpuLeaseState]
    assert request["state"]["enum"] == [one.value for one in RequestState]
    assert lease["cause"]["enum"] == lease["revocation"]["properties"]["cause"]["enum"] == [*EndCause]
    assert ALTERNATIVE["properties"]["class"]["enum"] == [*ServiceClass]
    assert half("leaserequest", "spec")["properties"]["alternatives"]["maxItems"] == MOST_ALTERNATIVES


def _unbounded(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if schema.get("x-kubernetes-int-or-string"):
        yield from () if "maxLength" in schema else (path,)
        return
    kind = schema["type"]
    if kind == "object":
        if not schema.keys() & {"properties", "additionalProperties"}:
            yield f"{path}: open"
        if "additionalProperties" in schema:
            yield from () if "maxProperties" in schema else (path,)
            yield from _unbounded(schema["additionalProperties"], f"{path}.*")
        for name, below in schema.get("properties", {}).items():
            yield from _unbounded(below, f"{path}.{name}")
    elif kind == "array":
        yield from () if "maxItems" in schema else (path,)
        yield from _unbounded(schema["items"], f"{path}[]")
    elif kind == "string" and not schema.keys() & {"maxLength", "enum", "format"}:
        yield path


@pytest.mark.parametrize(("name", "which", "struct", "section"), HALVES)
def test_everything_is_bounded(name: str, which: str, struct: type[Wire], section: str) -> None:
    assert list(_unbounded(half(name, which), which)) == []


def test_the_examples_state_all_that_can_be_written() -> None:
    assert set(PLANE["spec"]) == set(half("agentcontrolplane", "spec")["properties"])
    assert set(REQUEST["spec"]) == set(half("leaserequest", "spec")["properties"])
    assert set(LEASE["spec"]) == set(half("gpulease", "spec")["properties"])
    assert {name for one in REQUEST["spec"]["alternatives"] for name in one} == set(ALTERNATIVE["properties"])


def test_the_defaults_are_those_of_the_structs() -> None:
    for schema, struct in (
        (half("agentcontrolplane", "spec"), wire.AgentControlPlaneSpec()),
        (ALTERNATIVE, wire.LeaseAlternative()),
        (half("leaserequest", "spec"), wire.LeaseRequestSpec()),
    ):
        written = msgspec.to_builtins(struct)
        found = {name: one["default"] for name, one in schema["properties"].items() if "default" in one}
        assert found == {name: written[name] for name in found}
        assert found


@pytest.fixture(scope="module")
def defined(plane: Plane) -> Iterator[Plane]:
    for name, path in PATHS.items():
        plane.kubectl("apply", f"--filename={path}")
        plane.kubectl("wait", "--for=condition=Established", f"crd/{name}s.dovetail.dev", "--timeout=60s")
    plane.kubectl("create", "namespace", "agent-tuner")
    yield plane
    plane.kubectl("delete", "namespace", "agent-tuner", "--wait=false")


def apply(plane: Plane, document: Document, *, dry_run: bool = False) -> None:
    """As `kubectl apply --server-side --force-conflicts` does."""
    meta = document["metadata"]
    path = f"/apis/dovetail.dev/v1alpha1/namespaces/{meta['namespace']}/{document['kind'].lower()}s/{meta['name']}"
    query = "fieldManager=kubectl&fieldValidation=Strict&force=true" + ("&dryRun=All" if dry_run else "")
    plane.request("PATCH", f"{path}?{query}", document, "application/apply-patch+yaml")


def with_spec(document: Document, **spec: Any) -> Document:
    made = deepcopy(document)
    made["spec"] |= spec
    return made


@pytest.mark.plane
def test_a_real_server_keeps_the_examples_and_shows_them(defined: Plane) -> None:
    for document in (PLANE, REQUEST, LEASE):
        apply(defined, document)
    found = json.loads(defined.kubectl("get", "gl,acp,lreq", "--namespace=agent-tuner", "--output=json"))["items"]
    kept = {one["kind"]: one["spec"] for one in found}
    assert kept["GPULease"]["devices"] == LEASE["spec"]["devices"]
    assert kept["AgentControlPlane"] == PLANE["spec"]
    assert kept["LeaseRequest"]["alternatives"][2] == {
        "gpuMemory": "20Gi",
        "duration": "1h",
        "class": "Burst",
        "count": 1,
        "perNode": 1,
        "resource": "nvidia.com/gpu",
    }
    shown = defined.kubectl("get", "gpuleases", "--namespace=agent-tuner")
    assert re.search(r"train-7 +tuner +2 +Burst", shown)


def refused(field: str, **spec: Any) -> Any:
    return pytest.param(spec, field, id=f"{field}={next(iter(spec.values()))}"[:60])


def alternative(field: str, **one: Any) -> Any:
    return refused(f"spec.alternatives[0].{field}", alternatives=[one])


@pytest.mark.plane
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        alternative("least", count=2, least=3),
        alternative("perNode", count=6, perNode=4),
        alternative("perNode", count=8, least=6, perNode=4),
        alternative("gpuFraction", gpuFraction="0.5", gpuMemory="8Gi"),
        alternative("perNode", count=2, perNode=2, gpuFraction="0.5"),
        alternative("perNode", resource="nvidia.com/mig-1g.5gb", gpuFraction="0.5"),
        alternative("gpuFraction", gpuFraction="0.000"),
        alternative("gpuFraction", gpuFraction="1.5"),
        alternative("gpuMemory", gpuMemory=1024),
        alternative("resource", resource="cpu"),
        alternative("nvlink", nvlink=True),
        alternative("leastDuration", duration="1m", leastDuration="2m", **{"class": "Scavenger"}),
        alternative("leastDuration", duration="2m", leastDuration="1m"),
        alternative("latest", earliest="2026-01-02T00:00:00Z", latest="2026-01-01T00:00:00Z"),
        alternative("duration", duration="721h"),
        alternative("duration", duration="0s"),
        alternative("duration", duration="1d"),
        alternative("class", **{"class": "Gold"}),
        alternative("count", count=0),
        alternative("count", count=1025),
        refused("spec.alternatives", alternatives=[]),
        refused("spec.alternatives", alternatives=[{}] * 9),
        refused("spec.answer.counter", answer={"offer": "a", "action": "counter"}),
        refused("spec.answer.counter", answer={"offer": "a", "action": "accept", "counter": {}}),
        refused("spec.answer.action", answer={"offer": "a", "action": "perhaps"}),
        refused("spec.grace", grace="25h"),
    ],
)
def test_a_real_server_refuses_a_request_that_contradicts_itself(defined: Plane, spec: Document, field: str) -> None:
    document = with_spec(REQUEST, **spec) | {"metadata": {"name": "refused", "namespace": "agent-tuner"}}
    with pytest.raises(RequestFailed, match=re.escape(field)):
        apply(defined, document, dry_run=True)


@pytest.mark.plane
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        refused("spec.guarantee.gpu", guarantee={"gpu": 17}),
        refused("spec.heartbeat", heartbeat="0.5s"),
        refused("spec.heartbeat", heartbeat="2h"),
        refused("spec.idle", idle="721h"),
        refused("spec.weight", weight=0),
        refused("spec.queue", queue=""),
        refused("spec.backend", backend="vcluster"),
    ],
)
def test_a_real_server_refuses_a_plane_that_contradicts_itself(defined: Plane, spec: Document, field: str) -> None:
    document = with_spec(PLANE, **spec) | {"metadata": {"name": "refused", "namespace": "agent-tuner"}}
    with pytest.raises(RequestFailed, match=re.escape(field)):
        apply(defined, document, dry_run=True)


@pytest.mark.plane
@pytest.mark.parametrize(
    ("document", "spec", "field"),
    [
        (REQUEST, {"plane": "other"}, "spec.plane"),
        (LEASE, {"plane": "other"}, "spec.plane"),
        (LEASE, {"fence": 2, "action": LEASE["spec"]["action"] | {"fence": 2, "number": 2}}, "spec.fence"),
        (LEASE, {"start": "2026-01-31T12:00:01Z"}, "spec.start"),
        (LEASE, {"grace": "2m"}, "spec.grace"),
        (LEASE, {"startup": "2m"}, "spec.startup"),
        (LEASE, {"alternative": LEASE["spec"]["alternative"] | {"duration": "31m"}}, "spec.alternative"),
        (LEASE, {"devices": LEASE["spec"]["devices"][:1]}, "spec.devices"),
        (LEASE, {"action": LEASE["spec"]["action"] | {"until": "2026-01-31T12:55:00Z"}}, "spec.action.number"),
        (LEASE, {"action": {"number": 2, "fence": 1, "action": "return"}}, "spec.action.fence"),
        (LEASE, {"action": LEASE["spec"]["action"] | {"number": 2, "action": "return"}}, "spec.action.until"),
    ],
)
def test_a_real_server_lets_nothing_change_that_is_fixed(
    defined: Plane, document: Document, spec: Document, field: str
) -> None:
    apply(defined, document)
    with pytest.raises(RequestFailed, match=re.escape(field)):
        apply(defined, with_spec(document, **spec), dry_run=True)
    returned = {"number": 2, "fence": LEASE["spec"]["fence"], "action": "return"}
    apply(defined, with_spec(LEASE, action=returned), dry_run=True)


WHOLE = LeaseAlternative(
    4, 2, 2, models=("NVIDIA-H100-80GB-HBM3",), nvlink=True, within=("dovetail.dev/rack",), cpu_milli=500,
    memory_bytes=2**30, duration_ms=1_800_250, earliest_ms=1_769_860_800_001, latest_ms=1_769_860_800_002,
)  # fmt: skip
PART = LeaseAlternative(gpu_milli=1, duration_ms=90_500, least_duration_ms=1000, service=ServiceClass.SCAVENGER)
MIG = LeaseAlternative(2, resource="nvidia.com/mig-1g.5gb", service=ServiceClass.GUARANTEED)


def leased(name: str, granted: LeaseAlternative, *holdings: tuple[tuple[int, ...], tuple[Instance, ...]]) -> GpuLease:
    id_ = f"agent-tuner/{name}"
    parts = tuple([Holding(f"lease/{id_}/12.0~/{n}", "gpu-1", *one) for n, one in enumerate(holdings)])
    start_ms = 1_769_860_800_250
    return GpuLease(
        id_, "agent-tuner/tuner", name, granted, parts, start_ms, start_ms + granted.duration_ms, start_ms, 60_000,
        startup_ms=30_500,
    )  # fmt: skip


LEASES = [
    leased("whole", WHOLE, ((0, 1), ()), ((6, 7), ())),
    leased("part", PART, ((3,), ())),
    leased("mig", MIG, ((), (Instance(2, "1g.5gb", 0),)), ((), (Instance(2, "1g.5gb", 6),))),
    leased("memory", LeaseAlternative(gpu_memory_mib=10_240), ((61,), ())),
]


async def _write(client: Client, resource: Resource, name: str, status: Document) -> None:
    path = resource.path("agent-tuner", name, "status")
    patch = [{"op": "add", "path": "/status", "value": status}]
    await client.request("PATCH", path, patch, content_type="application/json-patch+json")


@pytest.mark.plane
@pytest.mark.parametrize("lease", LEASES, ids=lambda lease: lease.name)
async def test_a_real_server_takes_a_lease_as_it_is_written_and_returns_it(defined: Plane, lease: GpuLease) -> None:
    async with Client(load_kubeconfig([defined.kubeconfig])) as client:
        path = GPU_LEASES.path("agent-tuner")
        await client.request("POST", path, lease_documents.lease_object(lease, "uid", {"gpu-1": ["GPU-0"]}))
        await _write(client, GPU_LEASES, lease.name, lease_documents.lease_status(lease, action=3, refused="x" * 5000))
        one = GPU_LEASES.path("agent-tuner", lease.name)
        found = await client.request("GET", one, decode=wire.GPULease)
        assert found is not None and found.status is not None
        assert leases.lease(found) == (lease, None)
        revocation = Revocation(EndCause.RECLAIMED, lease.start_ms + 1, "for \u202e others \x00")
        revoked = msgspec.structs.replace(lease, revocation=revocation)
        status = lease_documents.lease_status(revoked, "Revoking")
        await _write(client, GPU_LEASES, lease.name, status)
        found = await client.request("GET", one, decode=wire.GPULease)
        assert found is not None and found.status is not None
        assert leases.lease(found) == (revoked, None)
        over = lease_documents.ended(EndLease(lease.id, EndCause.RECLAIMED, (), 1, 500), lease.start_ms, status)
        await _write(client, GPU_LEASES, lease.name, over)
        await client.request("DELETE", one)


@pytest.mark.plane
async def test_a_real_server_takes_each_status_of_a_request_and_of_a_plane(defined: Plane) -> None:
    apply(defined, with_spec(REQUEST) | {"metadata": {"name": "status", "namespace": "agent-tuner"}})
    apply(defined, with_spec(PLANE) | {"metadata": {"name": "reported", "namespace": "agent-tuner"}})
    offers = tuple([Offer(f"agent-tuner/{n}", n == 0, one, 1_769_860_800_250, (), "why" * n) for n, one in
                    enumerate((WHOLE, PART, MIG))])  # fmt: skip
    refusal = Refusal(Reason.PLANE_LIMIT, When.NOT_YET, "leases: 1", expected=Expected(Sure.KNOWN, 1_769_860_800_250))
    async with Client(load_kubeconfig([defined.kubeconfig])) as client:
        made = lease_documents.offered(MakeOffers("r", offers, 1_769_860_815_250, 1), 1)
        await _write(client, LEASE_REQUESTS, "status", made)
        path = LEASE_REQUESTS.path("agent-tuner", "status")
        found = await client.request("GET", path, decode=wire.LeaseRequest)
        assert found is not None and found.status is not None
        assert found.status == msgspec.convert(made, wire.LeaseRequestStatus)
        for state in RequestState:
            decision = RequestStatus("r", state.value, refusal, 1, 1_769_860_815_250)
            await _write(client, LEASE_REQUESTS, "status", lease_documents.request_status(decision, 1, made))
        await _write(client, LEASE_REQUESTS, "status", lease_documents.granted(LEASES[0].name, 1))
        held = (("cpu", 1500), ("gpu", 500), ("gpu-memory", 81_920), ("gpu/A100", 500))
        snapshot = msgspec.structs.replace(State(Policy()).queue_snapshots(1_769_860_800_250)[0], allocated=held)
        for phase in ("Ready", "Invalid", "Ignored", "Silent"):
            heard = lease_documents.Acknowledged(1_769_853_600_250, 1_769_860_800_250)
            report = lease_documents.PlaneReport(phase, "why", 1, 2, heard, snapshot)
            await _write(client, CONTROL_PLANES, "reported", lease_documents.plane_status(report, 1_769_860_800_250))
        found = await client.request(
            "GET", CONTROL_PLANES.path("agent-tuner", "reported"), decode=wire.AgentControlPlane
        )
        read, findings = leases.usage(found)
        assert read is not None and findings == () and found.status is not None
        assert lease_documents.acknowledged(found.status) == heard
    shown = defined.kubectl("get", "acp", "reported", "--namespace=agent-tuner")
    assert re.search(r"reported +agents +2 +Silent +1 +0.5", shown)
