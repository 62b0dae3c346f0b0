# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims and DeviceClasses become records, and what of a claim cannot be honoured names its field."""

from typing import Any

import pytest
import yaml

from dovetail.core import events as ev
from dovetail.core.dra.types import Allocation, ClaimSpec, Constraint, DeviceRequest, Grant
from dovetail.core.model import NodeTerm, Requirement, Toleration
from dovetail.kube.objects.claims import DeviceClass, ResourceClaim
from dovetail.kube.translate import claims as translate_claims
from dovetail.kube.translate import pods
from dovetail.kube.translate.translator import Translator
from tests.kube.yaml_objects import Change, added, deleted, pod, wire

ONE = "{name: gpu, exactly: {deviceClassName: h100}}"
OWNED = [{"kind": "Pod", "name": "p", "uid": "u-p", "controller": True}]
RESULT = "{request: gpu, driver: gpu.example.com, pool: n1, device: gpu-0}"
ON_N1 = "{nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [n1]}]}]}"


def claim(devices: str = f"requests: [{ONE}]", status: str = "{}", **metadata: Any) -> ResourceClaim:
    """`devices` are the members of `spec.devices`."""
    meta = {"name": "c", "namespace": "ml", "uid": "u-c"} | metadata
    document = {"metadata": meta, "spec": {"devices": yaml.safe_load(devices)}, "status": yaml.safe_load(status)}
    return wire(ResourceClaim, yaml.safe_dump(document))


def spec(devices: str) -> ClaimSpec:
    record = translate_claims.claim(claim(devices))
    assert record.problem is None
    return record.spec


def problem(devices: str) -> tuple[str, str]:
    found = translate_claims.claim(claim(devices)).problem
    assert found is not None
    return found.field.removeprefix("spec.devices."), found.value


def exactly(text: str) -> str:
    return f"requests: [{{name: gpu, exactly: {{deviceClassName: h100, {text}}}}}]"


def test_a_claim_has_its_owner_its_devices_and_its_users() -> None:
    bare = translate_claims.claim(claim())
    assert (bare.key, bare.uid, bare.owner_pod, bare.allocation, bare.reserved_for) == ("ml/c", "u-c", "", None, ())
    assert bare.spec == ClaimSpec(((DeviceRequest("gpu", "h100"),),))
    status = f"""
    allocation: {{devices: {{results: [{RESULT}]}}, nodeSelector: {ON_N1}}}
    reservedFor: [{{resource: pods, name: p, uid: u-p}}, {{resource: pods, name: q, uid: u-q}}]"""
    used = translate_claims.claim(
        claim(status=status, ownerReferences=OWNED, deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["f"])
    )
    assert used.allocation == Allocation((Grant("gpu", "gpu.example.com", "n1", "gpu-0"),), "n1")
    assert (used.owner_pod, used.reserved_for, used.deleting) == ("u-p", ("u-p", "u-q"), True)


CONDITIONED = (
    "{request: gpu, driver: gpu.example.com, pool: n1, device: gpu-0,"
    " bindingConditions: [Ready, Cabled], bindingFailureConditions: [Broken]}"
)
STAMP_MS = 1_767_225_600_000


@pytest.mark.parametrize(
    ("result", "conditions", "failed", "unready_ms"),
    [
        (RESULT, "", "", 0),
        (CONDITIONED, "", "", STAMP_MS),
        (CONDITIONED, "{type: Ready, status: 'True'}", "", STAMP_MS),
        (CONDITIONED, "{type: Ready, status: 'True'}, {type: Cabled, status: 'False'}", "", STAMP_MS),
        (CONDITIONED, "{type: Ready, status: 'True'}, {type: Cabled, status: 'True'}", "", 0),
        (CONDITIONED, "{type: Broken, status: 'False'}", "", STAMP_MS),
        (CONDITIONED, "{type: Broken, status: 'True', message: no cable}", "device gpu-0: Broken: no cable", 0),
        (CONDITIONED, "{type: Broken, status: 'True'}", "device gpu-0: Broken", 0),
        (RESULT, "{type: Broken, status: 'True'}", "", 0),
    ],
)
def test_what_the_driver_states_of_an_allocated_device(
    result: str, conditions: str, failed: str, unready_ms: int
) -> None:
    device = f"{{driver: gpu.example.com, pool: n1, device: gpu-0, conditions: [{conditions}]}}"
    status = f"""
    allocation: {{devices: {{results: [{result}]}}, allocationTimestamp: 2026-01-01T00:00:00Z}}
    devices: {f"[{device}]" if conditions else "[]"}"""
    record = translate_claims.claim(claim(status=status))
    assert (record.failed, record.unready_ms) == (failed, unready_ms)


def test_an_allocation_states_where_it_can_be_used() -> None:
    def usable(selector: str) -> tuple[str, tuple[NodeTerm, ...] | None]:
        status = f"allocation: {{devices: {{results: [{RESULT}]}}{selector}}}"
        found = translate_claims.claim(claim(status=status)).allocation
        assert found is not None
        return found.node, found.node_terms

    assert usable("") == ("", None)
    zone = "{nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a]}]}]}"
    assert usable(f", nodeSelector: {zone}") == ("", (NodeTerm((Requirement("zone", "In", ("a",)),)),))
    assert usable(f", nodeSelector: {ON_N1}") == ("n1", None)
    two = ON_N1.replace("[n1]", "[n1, n2]")
    assert usable(f", nodeSelector: {two}")[0] == ""


def test_the_whole_allocation_of_a_device_is_known() -> None:
    result = (
        RESULT[:-1] + ", adminAccess: true, shareID: s, consumedCapacity: {memory: 10Gi, example.net/b: 500m},"
        " tolerations: [{key: k, operator: Exists, effect: NoSchedule, tolerationSeconds: 5}]}"
    )
    found = translate_claims.claim(claim(status=f"allocation: {{devices: {{results: [{result}]}}}}")).allocation
    consumed = (("example.net/b", 500), ("memory", 10 * 2**30 * 1000))
    tolerations = (Toleration("k", "Exists", "", "NoSchedule"),)
    assert found == Allocation((Grant("gpu", "gpu.example.com", "n1", "gpu-0", True, "s", consumed, tolerations),), "")


def test_requests_keep_their_order_and_their_alternatives() -> None:
    found = spec(
        """
        requests:
        - name: all
          exactly: {deviceClassName: nic, allocationMode: All, adminAccess: true}
        - name: any
          firstAvailable:
          - {name: big, deviceClassName: h200, count: 2, selectors: [{cel: {expression: "true"}}]}
          - name: small
            deviceClassName: a100
            capacity: {requests: {memory: 10Gi, cores: 500m}}
            tolerations: [{key: a, value: b}, {operator: Exists, effect: None}, {key: c, effect: NoExecute}]
        constraints: [{matchAttribute: example.com/root}, {requests: [any], distinctAttribute: example.com/id}]"""
    )
    assert found.requests == (
        (DeviceRequest("all", "nic", mode="All", admin_access=True),),
        (
            DeviceRequest("any/big", "h200", ("true",), count=2),
            DeviceRequest(
                "any/small",
                "a100",
                tolerations=(Toleration("a", "Equal", "b"), Toleration("c", "Equal", "", "NoExecute")),
                amounts=(("cores", 500), ("memory", 10 * 2**30 * 1000)),
            ),
        ),
    )
    assert found.constraints == (
        Constraint(match="example.com/root"), Constraint(("any",), distinct="example.com/id")
    )  # fmt: skip


def test_equal_specs_are_one() -> None:
    assert spec(f"requests: [{ONE}]") is spec(f"requests: [{ONE}]")


@pytest.mark.parametrize("requests", ["", "requests: []", "requests: null"])
def test_a_claim_may_ask_for_nothing(requests: str) -> None:
    assert spec(requests or "{}") == ClaimSpec()


@pytest.mark.parametrize(
    ("devices", "field", "value"),
    [
        ("requests: [{name: gpu}]", "requests[0]", "gpu"),
        ("requests: [{name: gpu, exactly: {deviceClassName: a}, firstAvailable: [{name: b}]}]", "requests[0]", "gpu"),
        ("requests: [{name: gpu, exactly: {}}]", "requests[0].exactly.deviceClassName", ""),
        (exactly("allocationMode: Most"), "requests[0].exactly.allocationMode", "Most"),
        (exactly("allocationMode: All, count: 2"), "requests[0].exactly.count", "2"),
        (exactly("count: -1"), "requests[0].exactly.count", "-1"),
        (exactly("count: 33"), "requests", "33"),
        (exactly("selectors: [{lua: {}}]"), "requests[0].exactly.selectors[0]", ""),
        (exactly("tolerations: [{operator: Near}]"), "requests[0].exactly.tolerations[0].operator", "Near"),
        (exactly("tolerations: [{effect: PreferNoSchedule}]"), "requests[0].exactly.tolerations[0].effect",
         "PreferNoSchedule"),
        (exactly("capacity: {requests: {memory: lots}}"), "requests[0].exactly.capacity.requests[memory]", "lots"),
        (exactly("capacity: {requests: {memory: -1}}"), "requests[0].exactly.capacity.requests[memory]", "-1"),
        (exactly("derivedAttributes: [{name: a/b}]"), "requests[0].exactly.derivedAttributes", "a/b"),
        (f"requests: [{ONE}]\nconstraints: [{{}}]", "constraints[0]", ""),
        (f"requests: [{ONE}]\nconstraints: [{{matchAttribute: root}}]", "constraints[0].matchAttribute", "root"),
        (f"requests: [{ONE}]\nconstraints: [{{matchAttribute: a/b, requests: [cpu]}}]", "constraints[0].requests[0]",
         "cpu"),
        (f"requests: [{ONE}]\nconfig: [{{requests: [gpu/big]}}]", "config[0].requests[0]", "gpu/big"),
        (f"requests: [{', '.join([ONE] * 33)}]", "requests", "33"),
        ("requests: [{{name: a, firstAvailable: [{}]}}]".format(", ".join(["{name: x, deviceClassName: y}"] * 9)),
         "requests[0].firstAvailable", "9"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_names_its_field(devices: str, field: str, value: str) -> None:
    assert problem(devices) == (field, value)


def test_an_expression_that_is_too_long_is_reported_by_its_beginning() -> None:
    field, value = problem(exactly(f"selectors: [{{cel: {{expression: '{'x' * 10_241}'}}}}]"))
    assert field == "requests[0].exactly.selectors[0].cel.expression"
    assert len(value) < 60


def test_a_class_states_which_devices_it_means() -> None:
    found = translate_claims.device_class(
        wire(
            DeviceClass,
            """
            metadata: {name: h100, creationTimestamp: 2026-01-01T00:00:00Z}
            spec:
              extendedResourceName: example.com/gpu
              selectors: [{cel: {expression: a}}, {cel: {expression: b}}]""",
        )
    )
    assert (found.name, found.selectors, found.extended_resource) == ("h100", ("a", "b"), "example.com/gpu")
    assert found.created_ms == 1_767_225_600_000


class TestPods:
    """Which claims a pod has."""

    def claims(self, claims: str, statuses: str = "[]") -> tuple[str, ...]:
        spec = f"{{schedulerName: dovetail, resourceClaims: {claims}}}"
        record = pods.pod(pod(f"spec: {spec}\nstatus: {{resourceClaimStatuses: {statuses}}}"))
        assert record.problem is None
        return record.device_claims

    def test_by_name_and_from_templates(self) -> None:
        claims = "[{name: a, resourceClaimName: c}, {name: b, resourceClaimTemplateName: t}]"
        assert self.claims(claims, "[{name: b, resourceClaimName: a-b-x7k2p}]") == ("ml/c", "ml/a-b-x7k2p")

    def test_those_of_templates_are_its_own(self) -> None:
        claims = "[{name: a, resourceClaimName: c}, {name: b, resourceClaimTemplateName: t}]"
        spec, statuses = f"{{resourceClaims: {claims}}}", "[{name: b, resourceClaimName: a-b-x7k2p}]"
        record = pods.pod(pod(f"spec: {spec}\nstatus: {{resourceClaimStatuses: {statuses}}}"))
        assert record.own_device_claims == ("ml/a-b-x7k2p",)

    def test_one_that_is_still_to_be_made_has_a_name_that_no_object_can_have(self) -> None:
        assert self.claims("[{name: b, resourceClaimTemplateName: t}]") == ("ml/?b",)

    def test_one_that_need_not_be_made_is_none(self) -> None:
        assert self.claims("[{name: b, resourceClaimTemplateName: t}]", "[{name: b}]") == ()

    def test_one_that_names_nothing_is_a_problem(self) -> None:
        found = pods.pod(pod("spec: {schedulerName: dovetail, resourceClaims: [{name: a}]}")).problem
        assert found is not None
        assert (found.field, found.value) == ("spec.resourceClaims[0]", "a")


class TestFeed:
    """When a claim is reported."""

    def test_our_own_writes_are_reported_once_and_the_rest_is_no_news(self) -> None:
        feed = Translator()
        (event,) = feed.records.resource_claims(added(claim()))
        assert event == ev.ClaimChanged(translate_claims.claim(claim()))
        assert feed.records.resource_claims([Change("modified", claim(finalizers=["f"], resourceVersion="2"))]) == []
        status = f"allocation: {{devices: {{results: [{RESULT}]}}}}"
        (event,) = feed.records.resource_claims([Change("modified", claim(status=status))])
        assert isinstance(event, ev.ClaimChanged)
        assert event.claim.allocation is not None
        assert feed.records.resource_claims(deleted(claim())) == [ev.ClaimRemoved("ml/c")]

    def test_a_claim_that_was_made_again_is_read_anew(self) -> None:
        feed = Translator()
        feed.records.resource_claims(added(claim()))
        (event,) = feed.records.resource_claims(added(claim(exactly("count: 4"), uid="u-new")))
        assert isinstance(event, ev.ClaimChanged)
        assert (event.claim.uid, event.claim.spec.requests[0][0].count) == ("u-new", 4)

    def test_what_makes_a_claim_unusable_can_be_mended(self) -> None:
        """By an API server that knows more than this release; the spec of a stored claim does not change."""
        feed = Translator()
        feed.records.resource_claims(added(claim("requests: [{name: gpu}]")))
        (event,) = feed.records.resource_claims([Change("modified", claim())])
        assert isinstance(event, ev.ClaimChanged)
        assert event.claim.problem is None
