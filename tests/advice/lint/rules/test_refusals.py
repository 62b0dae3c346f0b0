# SPDX-License-Identifier: Apache-2.0
"""What the scheduler refuses for good, the linter finds; what the scheduler takes, it does not call refused."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
import yaml

from dovetail.core import events as ev
from dovetail.core.reasons import Reason
from dovetail.kube.gangs.owners import COMPLETION_INDEX
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.annotations import ENDPOINT_RULE, PREFIX, TABLE
from dovetail.kube.translate.translator import Translator
from tests.advice.lint.linted import findings
from tests.kube.yaml_objects import added

Document = dict[str, Any]
RULES = tuple(f"G{number:02}" for number in (*range(1, 10), 12, 45, 46))
BAD = ("", "eight", "1.5", "-1", "0", "a b", "yes", "12", "/", "a," * 20, "x" * 5000, "2026-01-01")
FOUND_IN_FILES = {
    Reason.INVALID: "metadata: {name: a, annotations: {dovetail.dev/gang-min: eight}}",
    Reason.QUEUE_MISSING: "metadata: {name: a, labels: {dovetail.dev/queue: nothere}}",
    Reason.QUEUE_NOT_LEAF: "metadata: {name: a, labels: {dovetail.dev/queue: above}}",
    Reason.QUEUE_INVALID: "metadata: {name: a, labels: {dovetail.dev/queue: wrong}}",
    Reason.QUEUES_MIXED: "metadata: {name: a, labels: {dovetail.dev/queue: b}, annotations: {dovetail.dev/gang: g}}",
    Reason.GANG_INCOMPLETE: 'metadata: {name: a, annotations: {dovetail.dev/gang: h, dovetail.dev/gang-min: "8"}}',
}
"""Of each reason that files alone show, the metadata of a pod that has it, among OTHERS."""
OTHERS = """
apiVersion: dovetail.dev/v1alpha1
kind: Queue
metadata: {name: above}
---
apiVersion: dovetail.dev/v1alpha1
kind: Queue
metadata: {name: b}
spec: {parent: above}
---
apiVersion: dovetail.dev/v1alpha1
kind: Queue
metadata: {name: wrong}
spec: {parent: nothere}
---
apiVersion: v1
kind: Pod
metadata:
  name: b
  labels: {dovetail.dev/queue: default}
  annotations: {dovetail.dev/gang: g, dovetail.dev/gang-min: "1"}
spec: {schedulerName: dovetail, containers: [{name: a, image: "a:1"}]}
---
"""
OF_THE_CLUSTER = {
    *("NODE_INVALID", "UNSCHEDULABLE", "TAINT", "NODE_AFFINITY", "PLUGIN_GONE", "QUARANTINED", "MAINTENANCE"),
    *("HOST_PORT", "TOO_MANY_PODS", "INSUFFICIENT", "GPU_SHARE", "GPU_MEMORY", "GPU_ISOLATION", "GPU_PARTS", "NVLINK"),
    *("NOMINATED", "VOLUME_NODE", "VOLUME_LIMIT", "SPREAD_LABEL", "SPREAD", "AFFINITY", "ANTI_AFFINITY", "DEVICES"),
    *("EXISTING_ANTI_AFFINITY", "CLAIM_NODE", "KUBELET", "REJECTED", "BIND_BACKOFF", "OUTSIDE_DOMAIN", "DELETING"),
    *("NO_NODES", "NO_NODE_FITS", "GANG_MISSING", "GANG_TOO_LARGE", "GANG_DOES_NOT_FIT", "GANG_BROKEN", "GANG_FULL"),
    *("SEARCH_LIMIT", "QUEUE_STOPPED", "QUEUE_BUDGET", "QUEUE_FORBIDDEN", "QUEUE_LIMIT", "BEYOND_GUARANTEE"),
    *("RESERVED", "EVICTING", "CLAIM_MISSING", "CLAIM_UNBOUND", "CLAIM_IN_USE", "CLAIM_TAKEN", "DEVICE_CLAIM"),
    *("DEVICE_CLAIM_INVALID", "DEVICE_CLAIM_TAKEN", "DEVICE_CLAIM_STUCK", "PLANE_MISSING", "PLANE_INVALID"),
    *("PLANE_SILENT", "PLANE_LIMIT", "OFFER_OUTSTANDING", "OFFER_GONE", "COUNTER_REFUSED", "TOO_EARLY", "TOO_LATE"),
    *("BACKING_OFF", "LEASE_MISSING", "LEASE_FORBIDDEN", "LEASE_FENCED", "LEASE_ENDING", "LEASE_NEEDED", "LEASE_FULL"),
    *("GATED", "HELD", "HEADROOM", "SPARE"),
}
"""Reasons that depend on what is in a cluster, or that the user wanted."""


def pod(**metadata: Any) -> Document:
    limits = {"nvidia.com/gpu": 1}
    container = {"name": "a", "image": "a:1", "resources": {"limits": limits}}
    spec = {"schedulerName": "dovetail", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", **metadata}, "spec": spec}


def problem(document: Document) -> str:
    """What the scheduler itself calls wrong about a pod and its gang; "" for nothing."""
    obj = msgspec.convert(document | {"metadata": document["metadata"] | {"uid": "u", "namespace": "ml"}}, Pod)
    pods, gangs = {}, {}
    for event in Translator().pods(added(obj)):
        if isinstance(event, ev.PodChanged):
            pods[event.pod.uid] = event.pod
        elif isinstance(event, ev.GangChanged):
            gangs[event.gang.id] = event.gang
    return "; ".join(str(one.problem) for one in (*pods.values(), *gangs.values()) if one.problem is not None)


def errors(*documents: Document) -> list[str]:
    return [
        f"{one.rule} {one.path}: {one.message}"
        for one in findings(yaml.safe_dump_all(documents), *RULES)
        if one.level.value == "error"
    ]


def test_every_reason_is_found_in_files_or_depends_on_the_cluster() -> None:
    assert {one.name for one in FOUND_IN_FILES} | OF_THE_CLUSTER == {one.name for one in Reason}


@pytest.mark.parametrize(("reason", "metadata"), FOUND_IN_FILES.items(), ids=lambda one: getattr(one, "name", ""))
def test_a_reason_that_files_show_is_a_finding(reason: Reason, metadata: str) -> None:
    text = (
        f"{OTHERS}apiVersion: v1\nkind: Pod\n{metadata}\nspec: {{schedulerName: dovetail, containers: [{{name: a}}]}}\n"
    )
    assert findings(text, *RULES), reason
    assert not findings(OTHERS, *RULES)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.slow
def test_a_value_that_the_scheduler_refuses_is_an_error_with_its_reason(name: str) -> None:
    key, refused = TABLE[name], 0
    for value in (*BAD, *key.examples):
        document = pod(**{key.place: {PREFIX + name: value}})
        declared = problem(document)
        if ENDPOINT_RULE in declared:
            continue
        found = errors(document)
        assert bool(found) == bool(declared), (value, declared, found)
        refused += bool(declared)
        rule = declared.partition("'")[0].partition(": ")[2].partition("; nearest")[0]
        assert not declared or any(rule[:40] in one for one in found), (declared, found)
    assert refused or not key.field


RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g10gb", "cpu", "a/b")
AMOUNTS = (0, 1, 1, "2", 1.5, "-1", "1k", "x")


def random_pod(draw: random.Random) -> Document:
    """A pod with a few faults, or none."""
    annotations = {
        "gpu-fraction": ("0.5", "2"), "gpu-memory": ("8Gi", "1"), "gpu-isolation": ("strong", "none", "weak"),
        "gang": ("g", "g g"), "gang-min": ("1", "0"), "gang-max": ("2", "1"), "max-runtime": ("1h", "0s"),
        "nvlink": ("required", "must"), "topology-required": ("rack", "", "a b"),
    }  # fmt: skip
    chosen = draw.sample(list(annotations.items()), draw.randrange(3))
    document = pod(annotations={PREFIX + key: draw.choice(values) for key, values in chosen})
    spec, container = document["spec"], document["spec"]["containers"][0]
    container["resources"] = {
        side: {
            name: draw.choice((0, 1, "2", 1.5, "-1", "1k", "x")) for name in draw.sample(RESOURCES, draw.randrange(3))
        }
        for side in ("requests", "limits")
    }
    if draw.random() < 0.15:
        operator, effect = draw.choice(("Exists", "Equals", "")), draw.choice(("", "NoSchedule", "Never"))
        spec["tolerations"] = [{"key": "k", "operator": operator, "effect": effect}]
    if draw.random() < 0.15:
        expression = {"key": "k", "operator": draw.choice(("In", "in", "Exists")), "values": ["a"]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    if draw.random() < 0.1:
        spec["resourceClaims"] = [draw.choice(({"name": "c"}, {"name": "c", "resourceClaimName": "d"}))]
    if draw.random() < 0.1:
        when = draw.choice(("DoNotSchedule", "Later"))
        spec["topologySpreadConstraints"] = [{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": when}]
    return document


RESOURCES = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-1g10gb",
    "cpu",
    "a.b/c",
)


@pytest.mark.slow
def test_a_pod_that_the_scheduler_refuses_has_an_error() -> None:
    refused = taken = 0
    for seed in range(150):
        document = random_pod(random.Random(seed))
        declared, found = problem(document), errors(document)
        if declared:
            refused += 1
            assert found, (seed, declared, document)
        else:
            taken += 1
            assert not [one for one in found if one.startswith(("G45", "G46"))], (seed, document)
    assert refused > 50 and taken > 10


def random_job(draw: random.Random) -> Document:
    numbers = ("1", "2", "4", "8", "x")

    def marks() -> dict[str, str]:
        keys = draw.sample(("gang-min", "gang-max", "gpu-memory"), draw.randrange(3))
        return {PREFIX + key: "8Gi" if key == "gpu-memory" else draw.choice(numbers) for key in keys}

    template = pod(annotations=marks())
    spec = {
        "parallelism": draw.choice((1, 4)),
        "completions": 4,
        "completionMode": draw.choice(("Indexed", "NonIndexed")),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "annotations": marks()},
        "spec": spec | {"template": {"metadata": template["metadata"], "spec": template["spec"]}},
    }


def problem_of_job(job: Document) -> str:
    """What the scheduler calls wrong once the Job's controller has made a pod."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
    template, indexed = job["spec"]["template"], job["spec"]["completionMode"] == "Indexed"
    metadata = template["metadata"] | {"name": "train-0", "namespace": "ml", "uid": "u", "ownerReferences": [owner]}
    if indexed:
        metadata["annotations"] = metadata["annotations"] | {COMPLETION_INDEX: "0"}
    translator = Translator()
    events = translator.pods(added(msgspec.convert({"metadata": metadata, "spec": template["spec"]}, Pod)))
    for ref in translator.gangs.wanted_owners():
        events += translator.gangs.owner(ref, job)
    last = {}
    for event in events:
        if isinstance(event, ev.PodChanged | ev.GangChanged):
            one = event.pod if isinstance(event, ev.PodChanged) else event.gang
            last[type(one)] = str(one.problem or "")
    return "; ".join(filter(None, last.values()))


@pytest.mark.slow
def test_a_job_whose_gang_the_scheduler_refuses_has_an_error() -> None:
    refused = taken = 0
    for seed in range(120):
        job = random_job(random.Random(seed))
        declared, found = problem_of_job(job), errors(job)
        found = [one for one in found if one.startswith(("G12", "G45", "G46"))]
        assert bool(found) == bool(declared), (seed, declared, found, job)
        refused += bool(declared)
        taken += not declared
    assert refused > 30 and taken > 10
