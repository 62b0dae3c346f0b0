# SPDX-License-Identifier: Apache-2.0
"""However the changes came in, the core ends up with the events of a feed that sees only the final objects."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core import events as ev
from dovetail.kube.gangs.dialects import VOLCANO
from dovetail.kube.translate.translator import Translator
from tests.kube.yaml_objects import Change, pod, wire

RAY: list[dict[str, Any]] = [{"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "r", "controller": True}]
OLD_RAY = [{**RAY[0], "apiVersion": "ray.io/v1alpha1"}]
JOB = [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": True}]
STATEFUL_SET = [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "controller": True}]
GROUP = {"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-index": "0"}


def of_sets(kind: str, version: str = "v1alpha1", **labels: str) -> dict[str, Any]:
    """A pod of AIBrix in the RoleSet `rs`, and in the PodSet `ps` of it."""
    api_version, name = f"orchestration.aibrix.ai/{version}", "rs" if kind == "RoleSet" else "ps"
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "controller": True}
    return {"ownerReferences": [owner], "labels": {key.replace("_", "-"): value for key, value in labels.items()}}


def of_group(**more: str) -> dict[str, Any]:
    """A pod of a LeaderWorkerSet that a DisaggregatedSet made."""
    labels = GROUP | {f"disaggregatedset.x-k8s.io/{key}": value for key, value in more.items()}
    return {"ownerReferences": STATEFUL_SET, "labels": labels}


TASK = {"scheduling.k8s.io/group-name": "g", "volcano.sh/task-spec": "ps"}
POD_VARIANTS: list[dict[str, Any]] = [
    {},
    {"annotations": {"dovetail.dev/gang": "g", "dovetail.dev/gang-min": "2"}},
    {"annotations": {"dovetail.dev/gang": "g", "dovetail.dev/gang-min": "3"}},
    {"annotations": {"dovetail.dev/gang-min": "3"}},
    {"annotations": TASK},
    {"annotations": TASK | {"dovetail.dev/topology-required": "rack"}},
    {"ownerReferences": RAY, "labels": {"ray.io/cluster": "r", "ray.io/group": "headgroup"}},
    {"ownerReferences": RAY, "labels": {"ray.io/cluster": "r", "ray.io/group": "none"}},
    {"ownerReferences": OLD_RAY, "labels": {"ray.io/cluster": "r", "ray.io/group": "headgroup"}},
    {"ownerReferences": JOB, "labels": {"batch.kubernetes.io/job-completion-index": "0"}},
    of_group(),
    of_group(name="d", role="prefill"),
    of_group(name="d", role="prefill", slice="1"),
    of_group(name="gone", role="prefill"),
    of_sets("RoleSet", role_name="decode"),
    of_sets("RoleSet", "v1", role_name="decode"),
    of_sets("PodSet", roleset_name="rs", role_name="prefill"),
]
GROUP_SPECS = ["{minMember: 2}", "{minMember: 2, minTaskMember: {ps: 1, worker: 1}}", "{minMember: 0}"]
DOCUMENTS: dict[str, Mapping[str, object]] = {
    "RayCluster": {"metadata": {"labels": {"dovetail.dev/queue": "q"}}, "spec": {}},
    "Job": {"spec": {"parallelism": 2}},
    "LeaderWorkerSet": {"spec": {"leaderWorkerTemplate": {"size": 3}}},
    "DisaggregatedSet": {"metadata": {"labels": {"dovetail.dev/queue": "q"}}, "spec": {"roles": [{"name": "prefill"}]}},
    "RoleSet": {"spec": {"roles": [{"name": "prefill", "replicas": 1, "podGroupSize": 2}]}},
    "PodSet": {"spec": {"podGroupSize": 2}},
}
UIDS = st.sampled_from("abc")
STEPS = st.lists(
    st.tuples(st.just("put"), UIDS, st.integers(0, len(POD_VARIANTS) - 1))
    | st.tuples(st.sampled_from(["finish", "delete"]), UIDS, st.just(0))
    | st.tuples(st.just("group"), st.just(""), st.integers(0, len(GROUP_SPECS) - 1))
    | st.tuples(st.sampled_from(["no group", "owners"]), st.just(""), st.just(0)),
    max_size=25,
)


class Core:
    """What the events of a feed add up to."""

    def __init__(self) -> None:
        self.feed = Translator()
        self.pods: dict[str, Any] = {}
        self.gangs: dict[str, Any] = {}

    def take(self, events: list[ev.Event]) -> None:
        for event in events:
            match event:
                case ev.PodChanged(pod):
                    assert self.pods.get(pod.uid) != pod
                    self.pods[pod.uid] = pod
                case ev.PodRemoved(uid):
                    del self.pods[uid]
                case ev.GangChanged(gang):
                    assert self.gangs.get(gang.id) != gang
                    self.gangs[gang.id] = gang
                case ev.GangRemoved(gang_id):
                    del self.gangs[gang_id]

    def put(self, uid: str, variant: int) -> None:
        self.take(self.feed.pods([Change("modified", pod(uid=uid, name=uid, **POD_VARIANTS[variant]))]))

    def group(self, kind: Any, spec: int) -> None:
        obj = wire(VOLCANO.kind, f"{{metadata: {{name: g, namespace: ml}}, spec: {GROUP_SPECS[spec]}}}")
        self.take(self.feed.gangs.pod_groups(VOLCANO, [Change(kind, obj)]))

    def answer_owners(self) -> None:
        for ref in self.feed.gangs.wanted_owners():
            self.take(self.feed.gangs.owner(ref, DOCUMENTS[ref.resource.kind] if ref.name != "gone" else None))
        assert self.feed.gangs.wanted_owners() == []


@pytest.mark.slow
@given(STEPS)
def test_only_the_final_objects_matter(steps: list[tuple[str, str, int]]) -> None:
    lived = Core()
    pods: dict[str, int] = {}
    group: int | None = None
    for what, uid, number in steps:
        match what:
            case "put":
                pods[uid] = number
                lived.put(uid, number)
            case "finish" | "delete":
                pods.pop(uid, None)
                phase = "Succeeded" if what == "finish" else "Running"
                gone = pod(f"status: {{phase: {phase}}}", uid=uid, name=uid)
                lived.take(lived.feed.pods([Change("modified" if what == "finish" else "deleted", gone)]))
            case "group":
                group = number
                lived.group("modified", number)
            case "no group":
                group = None
                lived.group("deleted", 0)
            case "owners":
                lived.answer_owners()
    lived.answer_owners()

    fresh = Core()
    if group is not None:
        fresh.group("added", group)
    for uid, number in sorted(pods.items()):
        fresh.put(uid, number)
    fresh.answer_owners()
    assert (lived.pods, lived.gangs) == (fresh.pods, fresh.gangs)
    nothing = Core()
    if group is not None:
        lived.group("deleted", 0)
    lived.take(lived.feed.pods([Change("deleted", pod(uid=uid, name=uid)) for uid in pods]))
    assert (lived.pods, lived.gangs) == ({}, {})
    assert vars(lived.feed.gangs) == vars(nothing.feed.gangs)
