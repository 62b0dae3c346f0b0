# SPDX-License-Identifier: Apache-2.0
"""From changes to events: what is reported, what is not reported twice, and when gangs and owners become known."""

from functools import partial
from typing import Any

import pytest
import yaml

from dovetail.core import events as ev
from dovetail.core.model import Gang
from dovetail.kube.api.resources import JOBS
from dovetail.kube.gangs.declared import OwnerRef
from dovetail.kube.gangs.dialects import COMPOSITE, COSCHEDULING, NATIVE, VOLCANO
from dovetail.kube.objects import base, fabric, storage
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.gang_records import GangRef
from dovetail.kube.translate.translator import Translator
from tests.kube.yaml_objects import Change, added, deleted, pod, wire

JOB = OwnerRef(JOBS, "ml", "train")
INDEXED = yaml.safe_load("{spec: {completionMode: Indexed, parallelism: 2, completions: 2}}")


def modified(*found: Any) -> list[Change[Any]]:
    return [Change("modified", obj) for obj in found]


def member(uid: str, node: str = "", phase: str = "", **annotations: str) -> Pod:
    """A pod of the indexed Job `train`."""
    return pod(
        f"spec: {{schedulerName: dovetail, nodeName: '{node}'}}\nstatus: {{phase: '{phase}'}}",
        uid=uid,
        name=uid,
        ownerReferences=[{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}],
        labels={"batch.kubernetes.io/job-completion-index": "0"},
        annotations={f"dovetail.dev/{key.replace('_', '-')}": value for key, value in annotations.items()},
    )


def named(uid: str, gang: str, **annotations: str) -> Pod:
    keys = {"gang": gang} | {key.replace("_", "-"): value for key, value in annotations.items()}
    return pod(uid=uid, annotations={f"dovetail.dev/{key}": value for key, value in keys.items()})


def gangs_in(events: list[ev.Event]) -> list[Gang]:
    return [event.gang for event in events if isinstance(event, ev.GangChanged)]


def gang_of_pods(events: list[ev.Event]) -> dict[str, str]:
    return {event.pod.uid: event.pod.gang for event in events if isinstance(event, ev.PodChanged)}


def test_a_pod_is_reported_when_it_changes_for_the_core_and_only_then() -> None:
    feed = Translator()
    (event,) = feed.pods(added(pod()))
    assert isinstance(event, ev.PodChanged)
    assert (event.pod.uid, event.pod.gang) == ("u-a", "")
    assert feed.pods(modified(pod("status: {conditions: [{type: Ready, status: 'False'}]}", resourceVersion="9"))) == []
    (event,) = feed.pods(modified(pod("spec: {schedulerName: dovetail, nodeName: n1}")))
    assert isinstance(event, ev.PodChanged)
    assert event.pod.node == "n1"
    assert feed.pods(deleted(pod())) == [ev.PodRemoved("u-a")]
    assert feed.pods(deleted(pod())) == []


def held(feed: Translator, *changes: Change[Any]) -> dict[str, bool]:
    return {event.pod.uid: event.pod.held for event in feed.pods(changes) if isinstance(event, ev.PodChanged)}


def test_a_pod_is_held_until_it_is_released_or_bound() -> None:
    feed, hold = Translator(), {"dovetail.dev/hold": "true"}
    assert held(feed, *added(pod(annotations=hold))) == {"u-a": True}
    assert held(feed, *modified(pod(annotations={"dovetail.dev/hold": "false"}))) == {"u-a": False}
    assert held(feed, *modified(pod(annotations=hold))) == {"u-a": True}
    bound = pod("spec: {schedulerName: dovetail, nodeName: n1}", annotations=hold)
    assert held(feed, *modified(bound)) == {"u-a": False}
    assert held(feed, *added(pod("spec: {schedulerName: other}", uid="o", name="o", annotations=hold))) == {"o": False}


def test_the_object_of_a_pod_holds_it_unless_the_pod_is_released_itself() -> None:
    feed = Translator()
    feed.pods(added(member("a"), member("b", hold="false")))
    document = {"metadata": {"annotations": {"dovetail.dev/hold": "true"}}, **INDEXED}
    events = feed.gangs.owner(JOB, document)
    assert {e.pod.uid: e.pod.held for e in events if isinstance(e, ev.PodChanged)} == {"a": True}
    assert held(feed, *modified(member("a", hold="false"))) == {"a": False}


def test_an_object_is_read_again_when_one_of_its_pods_is_held_or_released() -> None:
    feed = Translator()
    feed.pods(added(member("a"), member("b")))
    feed.gangs.owner(JOB, INDEXED)
    assert feed.gangs.wanted_owners() == []
    feed.pods(modified(member("a", hold="true")))
    assert feed.gangs.wanted_owners() == [JOB]
    feed.gangs.owner(JOB, {"metadata": {"annotations": {"dovetail.dev/hold": "true"}}, **INDEXED})
    feed.pods(modified(member("a", hold="false")))
    assert feed.gangs.wanted_owners() == [JOB]


def test_an_object_that_held_pods_on_their_own_is_read_again_for_new_ones() -> None:
    """They do not wait for it, so else it is read once."""
    feed, held_job = Translator(), {"metadata": {"annotations": {"dovetail.dev/hold": "true"}}}
    alone = {"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}]}
    feed.pods(added(pod(uid="a", name="a", **alone)))
    feed.gangs.owner(JOB, {})
    feed.pods(added(pod(uid="b", name="b", **alone)))
    assert feed.gangs.wanted_owners() == []
    feed.gangs.owner(JOB, held_job)
    feed.pods(added(pod(uid="c", name="c", **alone)))
    assert feed.gangs.wanted_owners() == [JOB]


def test_a_finished_pod_is_gone() -> None:
    feed = Translator()
    assert feed.pods(added(pod("status: {phase: Failed}"))) == []
    feed.pods(added(pod("status: {phase: Running}")))
    found = feed.reported("u-a")
    assert found is not None and (found.uid, found.key) == ("u-a", "ml/a")
    assert feed.pods(modified(pod("status: {phase: Succeeded}"))) == [ev.PodRemoved("u-a", succeeded=True)]
    assert feed.pods(deleted(pod("status: {phase: Succeeded}"))) == []
    assert feed.reported("u-a") is None


def test_a_pod_that_failed_differs_from_one_that_was_deleted() -> None:
    feed = Translator()
    running = "spec: {schedulerName: dovetail, nodeName: n1}\nstatus: {phase: "
    for uid in "abc":
        feed.pods(added(pod(running + "Running}", uid=uid)))
    assert feed.pods(modified(pod(running + "Failed}", uid="a"))) == [ev.PodRemoved("a", failed=True)]
    going = pod(running + "Failed}", uid="b", deletionTimestamp="2026-01-01T00:00:00Z")
    assert feed.pods(modified(going)) == [ev.PodRemoved("b")]
    assert feed.pods(deleted(pod(running + "Running}", uid="c"))) == [ev.PodRemoved("c")]


def test_a_pod_that_failed_before_the_start_is_reported_with_its_gang() -> None:
    times = "startTime: 2026-01-01T00:00:00Z"
    bound = "{type: PodScheduled, status: 'True', lastTransitionTime: 2026-01-01T00:00:00Z}"
    ended = "{type: Ready, status: 'False', lastTransitionTime: 2026-01-01T01:00:00Z}"
    lost = pod(
        f"spec: {{schedulerName: dovetail, nodeName: n1}}\nstatus: {{phase: Failed, {times}, "
        f"conditions: [{bound}, {ended}]}}",
        uid="lost",
        annotations={"dovetail.dev/gang": "g", "dovetail.dev/gang-min": "2"},
    )
    events = Translator().pods(added(lost))
    assert gang_of_pods(events) == {"lost": ""}
    (removed,) = [event for event in events if isinstance(event, ev.PodRemoved)]
    assert (removed.failed, removed.gang) == (True, "gang.dovetail.dev/ml/g")


def test_pods_of_other_schedulers_belong_to_no_gang() -> None:
    feed = Translator("other-name")
    events = feed.pods(added(member("a"), named("b", "g")))
    assert gang_of_pods(events) == {"a": "", "b": ""}
    assert feed.gangs.wanted_owners() == []


def test_events_come_in_the_order_of_the_changes() -> None:
    feed = Translator()
    feed.pods(added(pod(uid="old")))
    events = feed.pods([*deleted(pod(uid="old")), *added(pod(uid="new"), pod(uid="newer"))])
    reported = [event.pod.uid if isinstance(event, ev.PodChanged) else event for event in events]
    assert reported == [ev.PodRemoved("old"), "new", "newer"]


def test_the_owner_makes_the_gang() -> None:
    feed = Translator()
    events = feed.pods(added(member("a"), member("b")))
    assert gang_of_pods(events) == {"a": "job.batch/ml/train", "b": "job.batch/ml/train"}
    assert gangs_in(events) == []
    assert feed.gangs.wanted_owners() == [JOB]
    assert feed.gangs.owner(JOB, INDEXED) == [ev.GangChanged(Gang("job.batch/ml/train", "ml", "train", 2))]
    assert feed.gangs.wanted_owners() == []
    assert feed.gangs.owner(JOB, INDEXED) == []


def test_a_job_that_is_no_gang_frees_its_pods() -> None:
    feed = Translator()
    feed.pods(added(member("a")))
    events = feed.gangs.owner(JOB, {"spec": {"completionMode": "Indexed", "parallelism": 1, "completions": 9}})
    assert gang_of_pods(events) == {"a": ""}
    assert gang_of_pods(feed.pods(added(member("b")))) == {"b": ""}


def test_an_owner_is_wanted_again_when_pods_came_or_went() -> None:
    feed = Translator()
    feed.pods(added(member("a"), member("b")))
    feed.gangs.owner(JOB, INDEXED)
    assert feed.pods(modified(member("a", node="n1"))) != []
    assert feed.gangs.wanted_owners() == []
    feed.pods(added(member("c")))
    assert feed.gangs.wanted_owners() == [JOB]
    three = {"spec": {"completionMode": "Indexed", "parallelism": 3, "completions": 3}}
    assert [gang.min_count for gang in gangs_in(feed.gangs.owner(JOB, three))] == [3]
    feed.pods(deleted(member("c")))
    assert feed.gangs.wanted_owners() == [JOB]


def test_an_owner_whose_pods_are_all_bound_is_wanted_once() -> None:
    feed = Translator()
    feed.pods(added(member("a", node="n1")))
    assert feed.gangs.wanted_owners() == [JOB]
    feed.gangs.owner(JOB, INDEXED)
    assert feed.gangs.wanted_owners() == []
    feed.pods(added(member("c", node="n1")))
    assert feed.gangs.wanted_owners() == []
    feed.pods(added(member("b")))
    assert feed.gangs.wanted_owners() == [JOB]


def test_a_gang_is_forgotten_with_its_last_pod() -> None:
    feed = Translator()
    feed.pods(added(member("a")))
    feed.gangs.owner(JOB, INDEXED)
    assert feed.pods(deleted(member("a"))) == [ev.PodRemoved("a"), ev.GangRemoved("job.batch/ml/train")]
    assert feed.gangs.owner(JOB, INDEXED) == []
    # A new Job of the same name may be another one.
    assert gangs_in(feed.pods(added(member("b")))) == []
    assert feed.gangs.wanted_owners() == [JOB]


def test_of_an_owner_that_is_not_there_nothing_is_known() -> None:
    feed = Translator()
    (reported,) = feed.pods(added(member("a")))
    assert feed.gangs.owner(JOB, None) == []
    feed.pods(added(member("b")))
    assert feed.gangs.wanted_owners() == [JOB]
    (gang,) = gangs_in(feed.gangs.owner(JOB, INDEXED))
    assert (gang.id, gang.problem) == ("job.batch/ml/train", None)
    assert isinstance(reported, ev.PodChanged) and reported.pod.gang == gang.id and reported.pod.problem is None
    feed.pods(added(member("c")))
    assert feed.gangs.owner(JOB, None) == [ev.GangRemoved(gang.id)]


def test_pods_move_into_sub_gangs_when_these_become_known() -> None:
    def ray(uid: str, group: str) -> Pod:
        return pod(
            uid=uid,
            labels={"ray.io/cluster": "r", "ray.io/group": group},
            ownerReferences=[{"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "r", "controller": True}],
        )

    feed = Translator()
    feed.pods(added(ray("h", "headgroup"), ray("w", "gpu"), ray("x", "elastic")))
    (ref,) = feed.gangs.wanted_owners()
    groups = [{"groupName": "gpu", "replicas": 1}, {"groupName": "elastic", "replicas": 0}]
    events = feed.gangs.owner(ref, {"spec": {"workerGroupSpecs": groups}})
    root = "raycluster.ray.io/ml/r"
    assert [gang.id for gang in gangs_in(events)] == [root, f"{root}/headgroup", f"{root}/gpu"]
    assert gang_of_pods(events) == {"h": f"{root}/headgroup", "w": f"{root}/gpu"}
    assert gang_of_pods(feed.pods(added(ray("w2", "gpu")))) == {"w2": f"{root}/gpu"}


def test_pods_that_name_their_owner_in_several_versions_are_one_gang() -> None:
    def ray(uid: str, version: str) -> Pod:
        owner = {"apiVersion": f"ray.io/{version}", "kind": "RayCluster", "name": "r", "controller": True}
        return pod(uid=uid, labels={"ray.io/cluster": "r"}, ownerReferences=[owner])

    feed = Translator()
    feed.pods(added(ray("old", "v1alpha1"), ray("new", "v1")))
    assert [ref.resource.version for ref in feed.gangs.wanted_owners()] == ["v1alpha1"]
    feed.pods(deleted(ray("old", "v1alpha1")))
    assert [ref.resource.version for ref in feed.gangs.wanted_owners()] == ["v1alpha1"]
    feed.pods(deleted(ray("new", "v1")))
    assert feed.gangs.wanted_owners() == []


def test_each_group_of_a_leader_worker_set_is_a_gang() -> None:
    def worker(uid: str, group: str) -> Pod:
        return pod(
            uid=uid,
            labels={"leaderworkerset.sigs.k8s.io/name": "s", "leaderworkerset.sigs.k8s.io/group-index": group},
            ownerReferences=[{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s-0", "controller": True}],
        )

    feed = Translator()
    feed.pods(added(worker("a", "0"), worker("b", "1")))
    (ref,) = feed.gangs.wanted_owners()
    found = gangs_in(feed.gangs.owner(ref, {"spec": {"leaderWorkerTemplate": {"size": 2}}}))
    assert [(gang.name, gang.min_count) for gang in found] == [("s/0", 2), ("s/1", 2)]
    assert [gang.name for gang in gangs_in(feed.pods(added(worker("c", "2"))))] == ["s/2"]


GROUP = "{metadata: {name: g, namespace: ml}, spec: %s}"


def test_a_pod_group_may_come_before_or_after_its_pods() -> None:
    group = wire(NATIVE.kind, GROUP % "{schedulingPolicy: {gang: {minCount: 2}}}")
    text = "spec: {schedulerName: dovetail, schedulingGroup: {podGroupName: g}}"
    expected = Gang("podgroup.scheduling.k8s.io/ml/g", "ml", "g", 2)
    before, after = Translator(), Translator()
    assert gangs_in(before.gangs.pod_groups(NATIVE, added(group))) == [expected]
    assert gang_of_pods(before.pods(added(pod(text)))) == {"u-a": expected.id}
    assert gang_of_pods(after.pods(added(pod(text)))) == {"u-a": expected.id}
    assert after.gangs.pod_groups(NATIVE, added(group)) == [ev.GangChanged(expected)]
    assert after.gangs.pod_groups(NATIVE, modified(group)) == []


def test_a_deleted_pod_group_takes_its_gangs_along() -> None:
    feed = Translator()
    spec = "{minMember: 2, minTaskMember: {ps: 1, worker: 1}}"
    group = wire(VOLCANO.kind, GROUP % spec)
    root = "podgroup.scheduling.volcano.sh/ml/g"
    annotations = {"scheduling.k8s.io/group-name": "g", "volcano.sh/task-spec": "ps"}
    feed.gangs.pod_groups(VOLCANO, added(group))
    assert gang_of_pods(feed.pods(added(pod(annotations=annotations)))) == {"u-a": f"{root}/ps"}
    assert feed.gangs.ref(f"{root}/ps") == feed.gangs.ref(root) == GangRef(VOLCANO, "ml", "g")
    events = feed.gangs.pod_groups(VOLCANO, deleted(group))
    assert [event.id for event in events if isinstance(event, ev.GangRemoved)] == [root, f"{root}/ps", f"{root}/worker"]
    assert gang_of_pods(events) == {"u-a": root}
    assert feed.gangs.ref(root) is None


def test_a_pod_group_stays_when_its_pods_leave() -> None:
    feed = Translator()
    feed.gangs.pod_groups(COSCHEDULING, added(wire(COSCHEDULING.kind, GROUP % "{minMember: 2}")))
    labelled = pod(labels={"scheduling.x-k8s.io/pod-group": "g"})
    feed.pods(added(labelled))
    assert feed.pods(deleted(labelled)) == [ev.PodRemoved("u-a")]
    assert gang_of_pods(feed.pods(added(labelled))) == {"u-a": "podgroup.scheduling.x-k8s.io/ml/g"}


def test_composite_pod_groups() -> None:
    feed = Translator()
    spec = "{schedulingPolicy: {gang: {minGroupCount: 2}}}"
    (gang,) = gangs_in(feed.gangs.pod_groups(COMPOSITE, added(wire(COMPOSITE.kind, GROUP % spec))))
    assert (gang.id, gang.min_groups) == ("compositepodgroup.scheduling.k8s.io/ml/g", 2)
    assert feed.gangs.ref(gang.id) == GangRef(COMPOSITE, "ml", "g")


def test_a_gang_by_name_follows_what_its_pods_state() -> None:
    feed = Translator()
    (gang,) = gangs_in(feed.pods(added(named("a", "g", gang_min="2"), named("b", "g", gang_min="2"))))
    assert (gang.id, gang.min_count, gang.problem) == ("gang.dovetail.dev/ml/g", 2, None)
    (gang,) = gangs_in(feed.pods(modified(named("b", "g", gang_min="3"))))
    assert gang.problem is not None
    (gang,) = gangs_in(feed.pods(deleted(named("a", "g", gang_min="2"))))
    assert (gang.min_count, gang.problem) == (3, None)
    assert feed.pods(deleted(named("b", "g")))[1:] == [ev.GangRemoved("gang.dovetail.dev/ml/g")]
    assert feed.gangs.ref("gang.dovetail.dev/ml/g") is None


def test_a_pod_that_changes_its_gang_leaves_the_old_one() -> None:
    feed = Translator()
    feed.pods(added(named("a", "g", gang_min="1")))
    events = feed.pods(modified(named("a", "h", gang_min="1")))
    assert gang_of_pods(events) == {"a": "gang.dovetail.dev/ml/h"}
    assert events[1:] == [
        ev.GangRemoved("gang.dovetail.dev/ml/g"),
        ev.GangChanged(Gang("gang.dovetail.dev/ml/h", "ml", "h", 1)),
    ]


def test_levels_that_pods_ask_for_hold_for_their_gang() -> None:
    feed = Translator()
    feed.pods(added(member("a", topology_required="rack"), member("b", topology_required="rack")))
    (gang,) = gangs_in(feed.gangs.owner(JOB, INDEXED))
    assert gang.required == ("dovetail.dev/rack",)
    (gang,) = gangs_in(feed.pods(added(member("c", topology_required="zone"))))
    assert gang.problem is not None
    assert gang.problem.field == "metadata.annotations[dovetail.dev/topology-required]"


def test_the_queue_of_the_object_is_that_of_its_pods() -> None:
    feed = Translator()
    meta = "{metadata: {name: g, namespace: ml, labels: {dovetail.dev/queue: research}}, spec: {minMember: 1}}"
    label = {"scheduling.x-k8s.io/pod-group": "g"}
    feed.pods(added(pod(uid="a", labels=label), pod(uid="b", labels=label | {"dovetail.dev/queue": "own"})))
    events = feed.gangs.pod_groups(COSCHEDULING, added(wire(COSCHEDULING.kind, meta)))
    assert [(e.pod.uid, e.pod.queue) for e in events if isinstance(e, ev.PodChanged)] == [("a", "research")]


def test_a_minimum_without_a_gang_is_the_pods_problem() -> None:
    (event,) = Translator().pods(added(pod(annotations={"dovetail.dev/gang-min": "2"})))
    assert isinstance(event, ev.PodChanged)
    assert event.pod.problem is not None
    assert event.pod.problem.field == "metadata.annotations[dovetail.dev/gang-min]"


NODE = "{metadata: {name: n1, resourceVersion: '%d'}, status: {allocatable: {cpu: %d}, conditions: [{type: Ready}]}}"


def test_heartbeats_of_a_node_are_not_reported() -> None:
    feed = Translator()
    (event,) = feed.node_records.nodes(added(wire(base.Node, NODE % (1, 8))))
    assert isinstance(event, ev.NodeChanged)
    assert feed.node_records.nodes(modified(wire(base.Node, NODE % (2, 8)))) == []
    assert len(feed.node_records.nodes(modified(wire(base.Node, NODE % (3, 9))))) == 1
    assert feed.node_records.nodes(deleted(wire(base.Node, NODE % (3, 9)))) == [ev.NodeRemoved("n1")]


@pytest.mark.parametrize("csi_node_first", [True, False])
def test_attach_limits_are_reported_with_the_node(csi_node_first: bool) -> None:
    records, node = Translator().node_records, added(wire(base.Node, NODE % (1, 8)))
    text = "{metadata: {name: n1}, spec: {drivers: [{name: d, allocatable: {count: 3}}]}}"
    csi = added(wire(storage.CSINode, text))
    parts = [partial(records.csi_nodes, csi), partial(records.nodes, node)]
    reported = [event for part in (parts if csi_node_first else parts[::-1]) for event in part()]
    assert isinstance(reported[-1], ev.NodeChanged)
    assert reported[-1].node.attach_limits == (("d", 3),)
    (event,) = records.csi_nodes(deleted(csi[0].object))
    assert isinstance(event, ev.NodeChanged)
    assert event.node.attach_limits == ()


@pytest.mark.parametrize(
    ("method", "kind", "text", "removed"),
    [
        ("namespaces", base.Namespace, "{metadata: {name: x}}", ev.NamespaceRemoved("x")),
        ("claims", storage.PersistentVolumeClaim, "{metadata: {name: x, namespace: ml}}",
         ev.VolumeClaimRemoved("ml/x")),
        ("volumes", storage.PersistentVolume, "{metadata: {name: x}}", ev.VolumeRemoved("x")),
        ("fabrics", fabric.Fabric, "{metadata: {name: x}}", ev.FabricRemoved("x")),
        ("storage_classes", storage.StorageClass, "{metadata: {name: x}}", ev.StorageClassRemoved("x")),
    ],
)  # fmt: skip
def test_other_objects_are_reported_once_and_removed(method: str, kind: Any, text: str, removed: ev.Event) -> None:
    report, obj = getattr(Translator().records, method), wire(kind, text)
    assert len(report(added(obj))) == 1
    assert report(modified(obj)) == []
    assert report(deleted(obj)) == [removed]
    assert report(deleted(obj)) == []
