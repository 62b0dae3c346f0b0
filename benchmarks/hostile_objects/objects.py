# SPDX-License-Identifier: Apache-2.0
"""Hostile objects: what a tenant can write that is as large and expensive as an API server accepts, by kind.

A function makes the objects of one round and number, which share nothing with those of other rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

WHOLE, ANNOTATED = 1_500_000, 250_000
"""The size of an object, and of all its annotations, in bytes."""
PREFIX = "dovetail.dev/"

Document = dict[str, Any]
Sent = tuple[str, Document]
"""The name of a source and one of its objects."""


def pod(i: object, *, scheduler: str = "dovetail", node: str = "", **parts: Document) -> Document:
    """An ordinary pod with one GPU, in which `parts` replace the defaults."""
    amounts = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 1}
    container = {"name": "main", "image": "train:1", "resources": {"requests": amounts, "limits": amounts}}
    meta = {
        "name": f"p-{i}", "namespace": "tenant", "uid": f"uid-{i}", "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": "train"},
    }  # fmt: skip
    spec = {"schedulerName": scheduler, "nodeName": node, "containers": [container]}
    found = {"metadata": meta | parts.get("metadata", {}), "spec": spec | parts.get("spec", {})}
    return found | {"status": parts.get("status", {})}


def upto(size: int, make: Callable[[int], Any]) -> list[Any]:
    """As many different parts as fit into `size` bytes of JSON."""
    found, left, n = list[Any](), size, 0
    while left > 0:
        found.append(make(n))
        left -= len(msgspec.json.encode(found[-1])) + 1
        n += 1
    return found


def _annotated(i: str, pairs: list[tuple[str, str]], **more: Any) -> Iterator[Sent]:
    yield "pods", pod(i, metadata={"annotations": dict(pairs)}, **more)


def _term(i: str, n: int, **more: Any) -> Document:
    selector = {"matchExpressions": [{"key": f"k{n}", "operator": "In", "values": [f"v{i}-{n}"]}]}
    return {"topologyKey": f"t{i}-{n % 1000}", "labelSelector": selector} | more


def _affinity(i: str, kind: str, how: str, terms: list[Any], **more: Any) -> Iterator[Sent]:
    field = f"{how}DuringSchedulingIgnoredDuringExecution"
    yield "pods", pod(i, spec={"affinity": {kind: {field: terms}}}, **more)


def _terms(i: str, kind: str, size: int = 0, **more: Any) -> Iterator[Sent]:
    return _affinity(i, kind, "required", upto(size or WHOLE, lambda n: _term(i, n)), **more)


def _preferred(i: str) -> Iterator[Sent]:
    terms = upto(WHOLE, lambda n: {"weight": 1, "podAffinityTerm": _term(i, n)})
    return _affinity(i, "podAntiAffinity", "preferred", terms)


def _node_terms(i: str, terms: list[Any]) -> Iterator[Sent]:
    return _affinity(i, "nodeAffinity", "required", {"nodeSelectorTerms": terms})  # type: ignore[arg-type]


def _expressions(i: str, operator: str, values: Callable[[int], list[str]]) -> list[Document]:
    return upto(WHOLE, lambda n: {"key": f"k{i}-{n}", "operator": operator, "values": values(n)})


def _gang_of_one(i: str) -> Iterator[Sent]:
    return _annotated(i, [(f"{PREFIX}gang", f"g-{i}"), (f"{PREFIX}gang-min", "999999999")])


def _owned(i: str, owner: Document, document: Document, labels: dict[str, str]) -> Iterator[Sent]:
    meta = {"ownerReferences": [{"controller": True, "uid": f"o-{i}", "name": f"o-{i}"} | owner], "labels": labels}
    yield "pods", pod(i, metadata=meta)
    yield "owner", document


def _jobset(i: str) -> Iterator[Sent]:
    jobs = upto(WHOLE, lambda n: {"name": f"r{n}", "replicas": 1})
    labels = {"jobset.sigs.k8s.io/jobset-name": f"o-{i}", "jobset.sigs.k8s.io/replicatedjob-name": "r1"}
    return _owned(i, {"apiVersion": "batch/v1", "kind": "Job"}, {"spec": {"replicatedJobs": jobs}}, labels)


def _deep_job(i: str) -> Iterator[Sent]:
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    index = {"batch.kubernetes.io/job-completion-index": "0"}
    return _owned(i, {"apiVersion": "batch/v1", "kind": "Job"}, {"spec": {"template": deep}}, index)


def _group(i: str, source: str, spec: Document) -> Iterator[Sent]:
    yield source, {"metadata": {"name": f"g-{i}", "namespace": "tenant", "uid": f"g-{i}"}, "spec": spec}


def _volcano(i: str) -> Iterator[Sent]:
    tasks = dict.fromkeys(upto(WHOLE // 4 * 3, lambda n: f"t{n:06}"), 1)
    yield from _group(i, "volcano", {"minMember": len(tasks), "minTaskMember": tasks})
    yield "pods", pod(i, metadata={"annotations": {"scheduling.k8s.io/group-name": f"g-{i}"}})


def _composites(i: str) -> Iterator[Sent]:
    """One more link of a chain: each object of a round is the parent of the next."""
    tag, _, number = i.rpartition("-")
    parent = {"parentCompositePodGroupName": f"g-{tag}-{int(number) - 1}"} if int(number) else {}
    yield from _group(i, "composite", {"schedulingPolicy": {"basic": {}}} | parent)


def _composite(i: str) -> Iterator[Sent]:
    """One more child of a group that has hundreds, and its pod."""
    tag, _, number = i.rpartition("-")
    gang = {"schedulingPolicy": {"gang": {"minCount": 1}}, "parentCompositePodGroupName": f"root-{tag}"}
    for name in (i, *[f"{i}-{n}" for n in range(300 if number == "0" else 0)]):
        yield from _group(name, "native", gang)
        yield "pods", pod(name, spec={"schedulingGroup": {"podGroupName": f"g-{name}"}})


_DEFAULTS = {
    "image": "a", "imagePullPolicy": "Always", "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}  # fmt: skip


def _asking(n: int, amounts: Document) -> Document:
    return {"name": f"c{n}", "resources": {"limits": amounts}} | _DEFAULTS


def _containers(i: str, **spec: Any) -> Iterator[Sent]:
    made = upto(WHOLE, lambda n: _asking(n, {"cpu": f"{n}m", f"example.com/r{i}-{n}": 1}))
    yield "pods", pod(i, spec={"containers": made} | spec)


def _gpu_containers(i: str, **spec: Any) -> Iterator[Sent]:
    """Each container requests a resource that always counts and one that differs from the others."""
    made = upto(WHOLE, lambda n: _asking(n, {"cpu": f"{n}m", "memory": f"{n}Mi", f"nvidia.com/mig-{i}-{n % 50}": 1}))
    yield "pods", pod(i, spec={"containers": made} | spec)


def _wide_containers(i: str, **spec: Any) -> Iterator[Sent]:
    made = upto(WHOLE, lambda n: _asking(n, {f"example.com/r{i}-{n}-{m}": 1 for m in range(2_000)}))
    yield "pods", pod(i, spec={"containers": made} | spec)


def _resources(i: str) -> Iterator[Sent]:
    limits = {f"example.com/r{i}-{n}": 1 for n in range(len(upto(WHOLE, lambda n: f"example.com/r{i}-{n}:1")))}
    yield "pods", pod(i, spec={"containers": [{"name": "main", "resources": {"limits": limits}}]})


def _claim(i: str, requests: list[Any], parameters: list[Any] | None = None) -> Iterator[Sent]:
    config = [{"opaque": {"driver": "x.example", "parameters": one}} for one in parameters or ()]
    devices = {"requests": requests, "config": config}
    yield "resource_claims", {
        "metadata": {"name": f"c-{i}", "namespace": "tenant", "uid": f"c-{i}"}, "spec": {"devices": devices},
    }  # fmt: skip
    yield "pods", pod(i, spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": f"c-{i}"}]})


def _selectors(i: str, whole: bool) -> Iterator[Sent]:
    def expression(n: int) -> str:
        parts = [f'device.attributes["{i}-{n}-{m}.example"].model == "x"' for m in range(180)]
        return " || ".join(parts)[: 10_000 if whole else 300].rpartition(" || ")[0]

    requests: list[Any] = [
        {
            "name": f"r{r}",
            "exactly": {
                "deviceClassName": "gpu",
                "selectors": [{"cel": {"expression": expression(32 * r + s)}} for s in range(32)],
            },
        }
        for r in range(4)
    ]
    return _claim(
        i,
        requests
        if whole
        else [one | {"exactly": one["exactly"] | {"selectors": one["exactly"]["selectors"][:12]}} for one in requests],
    )


def _ports(i: str) -> Iterator[Sent]:
    ports = upto(WHOLE, lambda n: {"hostPort": 1 + n % 65_535, "containerPort": 1, "protocol": ("TCP", "UDP")[n % 2]})
    yield "pods", pod(i, spec={"containers": [{"name": "main", "ports": ports}]})


def _spread(i: str) -> Iterator[Sent]:
    wanted = upto(WHOLE, lambda n: _term(i, n, topologyKey=f"t{i}-{n}", whenUnsatisfiable="DoNotSchedule"))
    yield "pods", pod(i, spec={"topologySpreadConstraints": wanted})


def _of_spec(field: str, make: Callable[[str, int], Any], **more: Any) -> Callable[[str], Iterator[Sent]]:
    def build(i: str) -> Iterator[Sent]:
        yield "pods", pod(i, spec={field: upto(WHOLE, lambda n: make(i, n))}, **more)

    return build


def _owners(i: str) -> Iterator[Sent]:
    owners = upto(WHOLE, lambda n: {"apiVersion": "x/v1", "kind": "X", "name": f"o{n}", "uid": f"{i}-{n}"})
    yield "pods", pod(i, metadata={"ownerReferences": owners})


def _long_owner(i: str) -> Iterator[Sent]:
    owner = {"apiVersion": "x/v1", "kind": "X", "name": i + "-0" * 500_000 + "!", "uid": "o", "controller": True}
    yield "pods", pod(i, metadata={"ownerReferences": [owner]})


def _selected(source: str) -> Callable[[str], Iterator[Sent]]:
    def build(i: str) -> Iterator[Sent]:
        selector = {"matchExpressions": _expressions(i, "In", lambda n: [f"v{n}"])}
        yield from _group(i, source, {"selector": selector, "storageClassName": "fast"})
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": f"g-{i}"}}
        yield "pods", pod(i, spec={"volumes": [volume]})

    return build


def _unknown(scheduler: str) -> Callable[[str], Iterator[Sent]]:
    def build(i: str) -> Iterator[Sent]:
        return _annotated(i, [(f"{PREFIX}gnag-{i}-{n}", "x") for n in range(3_000)], scheduler=scheduler)

    return build


def _values(i: str) -> Iterator[Sent]:
    keys = ("gang", "gang-min", "nvlink", "gpu-memory", "max-runtime", "last-checkpoint", "devices")
    each = ANNOTATED // len(keys)
    return _annotated(i, [(PREFIX + key, (i + "1h" * each)[:each]) for key in keys])


def _levels(i: str) -> Iterator[Sent]:
    return _annotated(i, [(f"{PREFIX}topology-preferred", ",".join(f"l{i}-{n}" for n in range(22_000)))])


def _labels(i: str) -> Iterator[Sent]:
    yield "pods", pod(i, metadata={"labels": {f"k{i}-{n}": "" for n in range(60_000)}})


def _gpu_names(i: str) -> Iterator[Sent]:
    """Relevant names among names that the scheduler ignores."""
    limits = {f"nvidia.com/mig-{i}-{n}": 1 for n in range(len(upto(WHOLE, lambda n: f"nvidia.com/mig-{i}-{n}:1")))}
    yield "pods", pod(i, spec={"containers": [{"name": "main", "resources": {"limits": limits}}]})


def _last_has_gpu(i: str) -> Iterator[Sent]:
    for source, one in _containers(i):
        one["spec"]["containers"][-1]["resources"]["limits"] = {"nvidia.com/gpu": 1}
        yield source, one


def _longest_names(i: str) -> Iterator[Sent]:
    """A pod of ordinary size that shares nothing with any other pod, so it fills the caches."""
    domain = f"{'x' * 180}.{'y' * 60}"
    containers = [
        {"name": f"c{c}-{i}", "image": f"{'i' * 400}{i}",
         "resources": {"limits": {f"{domain}/{'z' * 40}-{i}-{c}-{k}": 1 for k in range(6)}}}
        for c in range(4)
    ]  # fmt: skip
    owner = {"controller": True, "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{'n' * 200}{i}", "uid": i}
    annotations = {f"{PREFIX}topology-preferred": f"example.com/l{i}", f"{PREFIX}max-runtime": "1h"}
    metadata = {"labels": {"k" * 60 + str(n): f"v{i}" for n in range(8)}, "annotations": annotations}
    spec = {"containers": containers, "tolerations": [{"key": f"{'t' * 200}{i}", "operator": "Exists"}]}
    yield "pods", pod(i, metadata=metadata | {"ownerReferences": [owner]}, spec=spec)


def _member(i: str) -> Iterator[Sent]:
    """One more pod of a large gang, with settings that differ from the others."""
    number = int(i.rpartition("-")[2])
    annotations = {f"{PREFIX}gang": f"g-{i.partition('-')[0]}", f"{PREFIX}gang-min": str(5_000 + number)}
    yield "pods", pod(i, metadata={"annotations": annotations})


def _user(i: str) -> Iterator[Sent]:
    """A pod of a new user, in a queue with fair share among its users."""
    amounts = {"cpu": "1m"}
    containers = [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}]
    labels = {f"{PREFIX}user": f"u-{i}", f"{PREFIX}queue": BY_USER}
    yield "pods", pod(i, metadata={"labels": labels}, spec={"containers": containers})


def _managed_fields(i: str) -> Iterator[Sent]:
    yield "pods", pod(i, metadata={"managedFields": upto(WHOLE, lambda n: {"manager": f"m{i}-{n}", "fieldsV1": {}})})


FOREIGN = "another"
BY_USER = "by-user"
HOSTILE: dict[str, Callable[[str], Iterator[Sent]]] = {
    "3,000 unknown keys": _unknown("dovetail"),
    "3,000 unknown keys, another scheduler": _unknown(FOREIGN),
    "long values": _values,
    "22,000 levels": _levels,
    "60,000 labels": _labels,
    "anti-affinity": lambda i: _terms(i, "podAntiAffinity"),
    "anti-affinity, another scheduler": lambda i: _terms(i, "podAntiAffinity", scheduler=FOREIGN),
    "anti-affinity, running": lambda i: _terms(i, "podAntiAffinity", scheduler=FOREIGN, node="node-1"),
    "170 anti-affinity terms, running": lambda i: _terms(
        i, "podAntiAffinity", 20_000, scheduler=FOREIGN, node="node-1"
    ),
    "affinity": lambda i: _terms(i, "podAffinity"),
    "preferred anti-affinity": _preferred,
    "spread constraints": _spread,
    "node terms": lambda i: _node_terms(
        i, [{"matchExpressions": [one]} for one in _expressions(i, "In", lambda n: [f"v{n}"])]
    ),
    "node expressions": lambda i: _node_terms(
        i, [{"matchExpressions": _expressions(i, "NotIn", lambda n: [f"v{n}"])}]
    ),
    "values of an expression": lambda i: _node_terms(
        i, [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn",
                                   "values": upto(WHOLE, lambda n: f"n{i}-{n}")}]}]
    ),
    "a number of 5,000 digits": lambda i: _node_terms(
        i, [{"matchExpressions": [{"key": "rank", "operator": "Gt", "values": ["9" * 5_000]}]}]
    ),
    "tolerations": _of_spec("tolerations", lambda i, n: {"key": f"k{i}-{n}", "operator": "Exists"}),
    "gates": _of_spec("schedulingGates", lambda i, n: {"name": f"g{i}-{n}"}),
    "volumes": _of_spec("volumes", lambda i, n: {"name": f"v{n}", "persistentVolumeClaim": {"claimName": f"{i}-{n}"}}),
    "claims of devices": _of_spec(
        "resourceClaims", lambda i, n: {"name": f"c{n}", "resourceClaimName": f"c-{i}-{n}"}
    ),
    "host ports": _ports,
    "host ports, running": lambda i: (
        (source, one | {"spec": one["spec"] | {"nodeName": "node-1", "schedulerName": FOREIGN}})
        for source, one in _ports(i)
    ),
    "containers": _containers,
    "containers, running": lambda i: _containers(i, nodeName="node-1"),
    "containers with GPUs, running": lambda i: _gpu_containers(i, nodeName="node-1"),
    "containers of many resources, running": lambda i: _wide_containers(i, nodeName="node-1"),
    "resources": _resources,
    "amounts of MIG slices": _gpu_names,
    "containers, the last with a GPU": _last_has_gpu,
    "the longest names": _longest_names,
    "one more of a gang": _member,
    "a user that is made up": _user,
    "managedFields": _managed_fields,
    "managedFields, another scheduler": lambda i: (
        (source, one | {"spec": one["spec"] | {"schedulerName": FOREIGN}}) for source, one in _managed_fields(i)
    ),
    "owners": _owners,
    "an owner with a long name": _long_owner,
    "a gang without its pods": _gang_of_one,
    "PodGroup of Volcano": _volcano,
    "PodGroup with levels": lambda i: _group(
        i, "native",
        {"schedulingPolicy": {"gang": {"minCount": 2**31}},
         "schedulingConstraints": {"topology": upto(WHOLE, lambda n: {"key": f"l{i}-{n}"})}},
    ),
    "a chain of groups": _composites,
    "one more group below another": _composite,
    "JobSet": _jobset,
    "a Job 900 deep": _deep_job,
    "CEL selectors": lambda i: _selectors(i, whole=True),
    "CEL selectors of 15 KiB": lambda i: _selectors(i, whole=False),
    # The API server accepts 32 selectors of 10 KiB each.
    "opaque configuration": lambda i: _claim(
        i, [{"name": "r", "exactly": {"deviceClassName": "gpu"}}], [{"x": upto(9_900, lambda n: [])}] * 32
    ),
    "opaque configuration, 4,000 deep": lambda i: _claim(
        i, [{"name": "r", "exactly": {"deviceClassName": "gpu"}}], [msgspec.Raw(b"[" * 4_000 + b"]" * 4_000)]
    ),
    "PersistentVolumeClaim": _selected("claims"),
    "PodDisruptionBudget": _selected("budgets"),
}  # fmt: skip
