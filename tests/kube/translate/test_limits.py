# SPDX-License-Identifier: Apache-2.0
"""What a tenant writes costs bounded work and memory, however much of it there is; limits are reported as bad input."""

import json
from typing import Any

import pytest

from dovetail.core import events as ev
from dovetail.core.bounded_cache import Remembered, same
from dovetail.core.cluster.columns import Columns
from dovetail.core.cluster.rejections import MOST_OWNERS
from dovetail.core.cluster.shapes import MOST_UNUSED
from dovetail.core.complexity import BROAD, LIGHT, TERM, parts
from dovetail.core.dra.types import ClaimSpec
from dovetail.core.labels import as_int64
from dovetail.core.model import GPU, Problem, Request, Requirement
from dovetail.core.queues.run_times import KEPT
from dovetail.core.workloads.index import MOST_DEPTH
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.decoding import BadObject, Reader, WatchEvent
from dovetail.kube.api.errors import BadReply
from dovetail.kube.gangs import owners
from dovetail.kube.gangs.declared import Membership, OwnerRef
from dovetail.kube.gangs.dialects import NATIVE, VOLCANO
from dovetail.kube.manifests.templates import JOB_SETS
from dovetail.kube.objects import base, storage
from dovetail.kube.objects.claims import DeviceClaim, ResourceClaim
from dovetail.kube.objects.groups import PodGroup, VolcanoPodGroup
from dovetail.kube.objects.long import LONGEST, LONGEST_PART
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate import annotations, budgets, limits, volumes
from dovetail.kube.translate import pods as translate
from dovetail.kube.translate.annotations import PREFIX, options_of
from dovetail.kube.translate.claims import claim_spec
from dovetail.kube.translate.sources import LONGEST_OWNER, outline, owner_document
from dovetail.kube.translate.translator import Translator
from tests.kube.yaml_objects import added, deleted, pod, wire
from tests.paths import ROOT

LONGEST_SHOWN = 4_000
A_TERM = {"topologyKey": "zone", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
REQUIRED, PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))


def large(spec: dict[str, Any] | None = None, **metadata: Any) -> Pod:
    return pod(
        json.dumps({"spec": {"schedulerName": "dovetail", "containers": [{"name": "main"}]} | (spec or {})}), **metadata
    )


def anti_affinity(count: int, **more: Any) -> dict[str, Any]:
    terms = [A_TERM | {"namespaces": [f"n{n}"]} for n in range(count)]
    return {"affinity": {"podAntiAffinity": {REQUIRED: terms}}} | more


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the nearest known key was sought for."""
    found: list[str] = []
    monkeypatch.setattr(annotations, "nearest", lambda value, valid: found.append(value) or next(iter(valid)))
    return found


def test_of_thousands_of_unknown_keys_a_few_are_compared_with_the_known_ones(compared: list[str]) -> None:
    problems = options_of(base.ObjectMeta(annotations={f"{PREFIX}gnag-{n}": "x" for n in range(3_000)})).problems
    assert len(compared) <= 8
    assert len(problems) <= 64
    assert (problems[0].field, problems[0].value) == ("metadata.annotations", "3000")


def test_nobody_compares_the_keys_of_pods_of_other_schedulers(compared: list[str]) -> None:
    keys = {f"{PREFIX}gnag-{n}": "x" for n in range(3_000)}
    (event,) = Translator("dovetail").pods(added(large({"schedulerName": "other"}, annotations=keys)))
    assert isinstance(event, ev.PodChanged)
    assert (compared, event.pod.problem) == ([], None)


def test_a_value_as_long_as_all_annotations_may_be_is_not_read(compared: list[str]) -> None:
    for key in annotations.TABLE:
        place = annotations.TABLE[key].place
        (problem,) = options_of(base.ObjectMeta(**{place: {PREFIX + key: "1h" * 120_000}})).problems
        assert problem.rule == "has 240000 characters; the limit is 4096"
        assert len(str(problem)) < LONGEST_SHOWN
    assert compared == []


def test_levels_have_a_limit() -> None:
    few, many = (",".join(f"l{n}" for n in range(count)) for count in (limits.MOST_LEVELS, limits.MOST_LEVELS + 1))
    (read, refused) = (
        options_of(base.ObjectMeta(annotations={f"{PREFIX}topology-preferred": one})) for one in (few, many)
    )
    assert len(read.preferred) == limits.MOST_LEVELS
    assert refused.preferred == ()
    assert refused.problems[0].rule.endswith(f"separated by commas, 16 at most; nearest valid value: {few}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec.affinity", anti_affinity(1_000)),
        ("spec.affinity", {"affinity": {"podAffinity": {
            PREFERRED: [{"weight": 1, "podAffinityTerm": A_TERM}] * 1_000}}}),
        ("spec.affinity", {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "k", "operator": "NotIn", "values": [f"v{n}" for n in range(5_000)]}]}]}}}}),
        ("spec.affinity", {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["9" * 300_000]}]}]}}}}),
        ("spec.affinity", {"affinity": {"nodeAffinity": {PREFERRED: [
            {"weight": 1, "preference": {"matchFields": [{"key": "metadata.name"}] * 300}}]}}}),
        ("spec.affinity", {"nodeSelector": {f"k{n}": "v" for n in range(5_000)}}),
        ("spec.affinity", {"tolerations": [{"key": f"k{n}", "operator": "Exists"} for n in range(1_000)]}),
        ("spec.affinity", {"topologySpreadConstraints": [A_TERM | {"maxSkew": 1}] * 1_000}),
        ("spec.containers", {"containers": [{"name": f"c{n}"} for n in range(200)]}),
        ("spec.containers[*].resources", {"containers": [
            {"name": f"c{n}", "resources": {"limits": {f"x/r{m}": 1 for m in range(8)}}} for n in range(40)]}),
        ("spec.containers[*].resources", {"containers": [
            {"name": "main", "resources": {"limits": {f"x/r{m}": 1 for m in range(100)}}}]}),
        ("spec.containers[*].ports", {"containers": [
            {"name": "main", "ports": [{"hostPort": n} for n in range(1, 1_000)]}]}),
        ("spec.volumes", {"volumes": [{"name": f"v{n}", "ephemeral": {}} for n in range(500)]}),
        ("spec.resourceClaims", {"resourceClaims": [{"name": f"c{n}", "resourceClaimName": "c"} for n in range(200)]}),
    ],
)  # fmt: skip
def test_what_is_too_much_is_bad_input_of_ours_and_nothing_of_others(field: str, spec: dict[str, Any]) -> None:
    record = translate.pod(large(spec))
    assert record.problem is not None
    assert record.problem.field == field
    assert "limit is" in record.problem.rule
    assert len(str(record.problem)) < LONGEST_SHOWN
    other = translate.pod(large(spec | {"schedulerName": "other"}))
    assert other.problem is None
    for one in (record, other):
        assert parts(one.request) <= limits.MOST_PARTS
        assert len(one.claims) <= limits.MOST_VOLUMES
        assert len(one.device_claims) <= limits.MOST_CLAIMS
        assert len(one.request.resources) <= limits.MOST_RESOURCES


def test_labels_have_a_limit() -> None:
    record = translate.pod(large(labels={f"k{n:05}": "" for n in range(60_000)}))
    assert record.problem is not None
    assert record.problem.field == "metadata.labels"
    assert record.labels == tuple((f"k{n:05}", "") for n in range(limits.MOST_LABELS))


def test_a_list_of_thousands_of_nodes_is_no_problem() -> None:
    names = [f"node-{n}" for n in range(3_000)]
    preferred = {
        REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "host", "operator": "NotIn", "values": names}]}]}
    }
    record = translate.pod(large({"affinity": {"nodeAffinity": preferred}}))
    assert record.problem is None
    assert record.request.node_terms is not None
    assert record.request.node_terms[0].expressions[0].values == tuple(names)


def test_pods_of_other_schedulers_keep_others_away_once_they_have_a_node() -> None:
    spec = anti_affinity(50, schedulerName="other", containers=[{"name": "main", "ports": [{"hostPort": 80}]}])
    ours = translate.pod(large(spec | {"schedulerName": "dovetail"})).request
    assert translate.pod(large(spec)).request == Request()
    placed = translate.pod(large(spec | {"nodeName": "n1"})).request
    assert (placed.anti_affinity, placed.ports) == (ours.anti_affinity, ours.ports)
    nominated = large(spec)
    nominated = pod(json.dumps({"spec": spec, "status": {"nominatedNodeName": "n1"}}))
    assert translate.pod(nominated).request == placed


@pytest.mark.slow
def test_of_too_many_terms_of_a_running_pod_the_first_count() -> None:
    found = translate.pod(large(anti_affinity(1_000, schedulerName="other", nodeName="n1"))).request.anti_affinity
    assert 64 <= len(found) <= 256
    assert [min(term.namespaces) for term in found] == [f"n{n}" for n in range(len(found))]


@pytest.mark.slow
def test_gpus_count_however_many_containers_stand_before_them() -> None:
    containers = [{"name": f"c{n}", "resources": {"limits": {"cpu": f"{n}m"}}} for n in range(2_000)]
    containers.append({"name": "last", "resources": {"limits": {f"x/a{n}": 1 for n in range(2_000)} | {GPU: 4}}})
    amounts = dict(translate.pod(large({"containers": containers, "nodeName": "n1"})).request.resources)
    assert amounts[GPU] == 4


def test_nothing_large_is_remembered() -> None:
    kept = Remembered(64, same)
    assert kept("y" * 5_000) == "y" * 5_000 and len(kept) == 0
    assert kept("y" * 3_000) == "y" * 3_000 and len(kept) == 1


def test_of_a_pod_that_was_translated_little_is_kept() -> None:
    known = outline(
        large(anti_affinity(100), labels={"a": "b"}, annotations={f"{PREFIX}decision": "1", "x": "y" * 9_999})
    )
    assert known == Pod(base.ObjectMeta("a", "ml", "u-a", annotations={f"{PREFIX}decision": "1"}))


def test_names_that_nobody_checks_are_short_before_they_are_searched() -> None:
    owner = {
        "apiVersion": "x/v1",
        "kind": "X",
        "name": "a" + "-0" * 500_000 + "!",
        "uid": "u" * 9_999,
        "controller": True,
    }
    record = translate.pod(large(ownerReferences=[owner]))
    assert len(record.work.family) < LONGEST_SHOWN
    assert len(record.owner) <= 253
    job = owner | {"apiVersion": "batch/v1", "kind": "Job"}
    assert owners.owned_by(large(ownerReferences=[job])) is None


def test_parts_of_a_gang_have_a_limit() -> None:
    tasks = {f"t{n}": 1 for n in range(limits.MOST_SUBGANGS + 1)}
    group = wire(VolcanoPodGroup, json.dumps({"spec": {"minMember": len(tasks), "minTaskMember": tasks}}))
    jobs = [{"name": name} for name in tasks]
    owner = OwnerRef(JOB_SETS.resource, "ml", "a")
    found = owners.declare(Membership("g", "ml", "a"), owners.read(owner, {"spec": {"replicatedJobs": jobs}}))
    assert found is not None
    for declared in (VOLCANO.declare(group), found):
        assert declared.gang.problem is not None
        assert declared.gang.problem.rule == f"are too many; the limit is {limits.MOST_SUBGANGS}"
        assert declared.parts == ()


def test_levels_of_a_group_have_a_limit() -> None:
    keys = [{"key": f"l{n}"} for n in range(1_000)]
    policy = {"schedulingPolicy": {"basic": {}}, "schedulingConstraints": {"topology": keys}}
    declared = NATIVE.declare(wire(PodGroup, json.dumps({"spec": policy})))
    assert declared.gang.problem is not None
    assert declared.gang.problem.field == "spec.schedulingConstraints.topology"
    assert len(declared.gang.required) == limits.MOST_LEVELS


def test_expressions_of_a_claim_have_a_limit_together() -> None:
    def claimed(expressions: list[str]) -> tuple[ClaimSpec, Problem | None]:
        selectors = [{"cel": {"expression": expression}} for expression in expressions]
        requests = [{"name": f"r{n}", "exactly": {"deviceClassName": "gpu", "selectors": selectors}} for n in range(9)]
        return claim_spec(wire(DeviceClaim, json.dumps({"requests": requests})))

    spec, problem = claimed([f"{n:05} == 1" for n in range(32)])
    assert (len(spec.requests), problem) == (9, None)
    spec, problem = claimed([f"{n:0500} == 1" for n in range(32)])
    assert problem is not None
    rule = f"are too many characters of expressions; the limit is {limits.MOST_EXPRESSIONS} for one claim"
    assert (problem.field, problem.rule) == ("spec.devices.requests", rule)
    assert spec.requests == ()


def test_selectors_of_budgets_and_volume_claims_have_a_limit() -> None:
    expressions = [{"key": f"k{n}", "operator": "Exists"} for n in range(1_000)]
    text = json.dumps({"metadata": {"name": "a"}, "spec": {"selector": {"matchExpressions": expressions}}})
    record, (finding,) = budgets.budget(wire(base.PodDisruptionBudget, text))
    assert record.selector is None
    assert finding.problem.field == "spec.selector"
    selector = volumes.claim(wire(storage.PersistentVolumeClaim, text)).selector
    assert selector is not None
    assert selector.requirements == (Requirement("", "In"),)


@pytest.mark.parametrize("digits", ["9" * 5_000, "0" * 5_000 + "7", "-" + "9" * 19, "+7", "9" * 300_000])
def test_a_number_of_thousands_of_digits_is_none(digits: str) -> None:
    assert as_int64(digits) == (7 if digits.endswith("7") else None)


def test_keys_that_no_node_has_make_no_columns() -> None:
    columns = Columns(128, [{} for _ in range(128)])
    assert len({id(columns[f"k{n}"]) for n in range(1_000)}) == 1
    assert not columns["k"].mask(Requirement("k", "Exists"), slice(0, 128)).any()
    assert columns["k"].mask(Requirement("k", "NotIn", ("a", "b")), slice(0, 128)).all()


@pytest.mark.parametrize("depth", [500, 1_500, 5_000])
def test_an_object_that_is_nested_too_deeply_is_reported_and_takes_no_other_with_it(depth: int) -> None:
    def text(name: str, inside: str) -> str:
        config = f'[{{"opaque": {{"driver": "x", "parameters": {inside}}}}}]'
        return f'{{"metadata": {{"name": "{name}", "namespace": "ml"}}, "spec": {{"devices": {{"config": {config}}}}}}}'

    reader = Reader(kinds.RESOURCE_CLAIMS, ResourceClaim)
    deep, plain = text("deep", "[" * depth + "]" * depth), text("plain", "{}")
    page, bad = reader.page(f'{{"metadata": {{}}, "items": [{plain}, {deep}, {plain}]}}'.encode())
    assert [one.key for one in bad] == ([] if depth == 500 else [("ml", "deep")])
    assert len(page.items or ()) == (3 if depth == 500 else 2)
    event = reader.line(f'{{"type": "ADDED", "object": {deep}}}'.encode())
    assert isinstance(event, WatchEvent if depth == 500 else BadObject)
    if isinstance(event, BadObject):
        assert event.key == ("ml", "deep")


def test_the_feed_keeps_nothing_of_what_is_gone() -> None:
    feed = Translator()
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": True}
    pods = [
        large(uid=f"u{n}", name=f"p{n}", ownerReferences=[job | {"name": f"j{n}"}], labels={"a": "b"},
              annotations={f"{PREFIX}gang": f"g{n}", "scheduling.k8s.io/group-name": f"g{n}"[: 9 * (n % 2)]})
        for n in range(20)
    ]  # fmt: skip
    feed.pods(added(*pods))
    for ref in feed.gangs.wanted_owners():
        feed.gangs.owner(ref, {"spec": {}})
    feed.pods(deleted(*pods))
    kept = (
        feed._pods,
        feed.gangs._members,
        feed.gangs._declared,
        feed.gangs._objects,
        feed.gangs._gangs,
        feed.gangs._owner_of,
        feed.gangs._owned,
        feed.gangs._read,
    )
    assert not any(kept)
    assert not feed.gangs.wanted_owners()


def test_an_owner_that_is_too_long_or_too_deep_cannot_be_read() -> None:
    for text in (json.dumps({"spec": "x" * LONGEST_OWNER}), '{"spec": ' + "[" * 5_000 + "]" * 5_000 + "}"):
        with pytest.raises(BadReply):
            owner_document(text.encode(), "/apis")
    assert owner_document(b'{"spec": {}}', "/apis") == {"spec": {}}


def test_every_limit_is_written_down() -> None:
    page = (ROOT / "docs/reference/limits.md").read_text()
    values = {name: value for name, value in vars(limits).items() if name.startswith("MOST_")}
    values |= {"keys": annotations.MOST_KEYS, "value": annotations.LONGEST, "depth": MOST_DEPTH, "unused": MOST_UNUSED}
    values |= {"light": LIGHT, "owners": MOST_OWNERS, "families": KEPT, "broad": BROAD, "term": TERM}
    assert [name for name, value in values.items() if f"{value:,}" not in page] == []
    for size in (LONGEST, LONGEST_PART, LONGEST_OWNER):
        assert f"{size // 1024} KiB" in page
