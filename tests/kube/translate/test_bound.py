# SPDX-License-Identifier: Apache-2.0
"""What is reported of pods that are bound: what was written down then, whatever stands on them or on other objects
now."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import structs

from dovetail.core import events as ev
from dovetail.core.model import Gang, Pod
from dovetail.kube.api.resources import JOBS
from dovetail.kube.gangs.declared import OwnerRef
from dovetail.kube.gangs.dialects import COSCHEDULING, NATIVE
from dovetail.kube.objects.groups import CoschedulingPodGroup, PodGroup
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.translate.bound import Bound
from dovetail.kube.translate.translator import Translator
from tests.bound import bound
from tests.kube.yaml_objects import Change, added, pod, wire

QUEUE, USER = "dovetail.dev/queue", "dovetail.dev/user"
PREEMPTIBLE, FRACTION, RUNTIME = (f"dovetail.dev/{key}" for key in ("preemptible", "gpu-fraction", "max-runtime"))
CHECKPOINT, NVLINK, RECORD = (f"dovetail.dev/{key}" for key in ("last-checkpoint", "nvlink", "bound"))
GROUP = "scheduling.x-k8s.io/pod-group"
GANG = "podgroup.scheduling.x-k8s.io/ml/g"
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job-1", "controller": True}
INDEX = {"batch.kubernetes.io/job-completion-index": "0"}
JOB = OwnerRef(JOBS, "ml", "train")
TWO = "spec: {completionMode: Indexed, parallelism: 2, completions: 2}"


def asking(name: str = "a", node: str = "", **metadata: Any) -> PodObject:
    text = f"""
spec:
  schedulerName: dovetail
  nodeName: "{node}"
  containers:
  - {{name: main, image: i, resources: {{requests: {{cpu: 1, memory: 1Gi}}, limits: {{nvidia.com/gpu: 1}}}}}}
"""
    return pod(text, name=name, uid=f"u-{name}", **metadata)


def changed_pods(events: list[ev.Event]) -> list[Pod]:
    return [event.pod for event in events if isinstance(event, ev.PodChanged)]


def gangs(events: list[ev.Event]) -> list[Gang]:
    return [event.gang for event in events if isinstance(event, ev.GangChanged)]


def modified(obj: PodObject) -> list[Change[PodObject]]:
    return [Change("modified", obj)]


def with_meta(obj: PodObject, **changed: Any) -> PodObject:
    return structs.replace(obj, metadata=structs.replace(obj.metadata, **changed))


def bind(feed: Translator, obj: PodObject, node: str = "n1", queue: str = "default", devices: str = "") -> PodObject:
    """Decide the pod and let it be seen bound; the pod as the server then has it."""
    record = feed.decided(obj.metadata.uid, queue, node, devices)
    spec = structs.replace(obj.spec, node_name=node)
    seen = structs.replace(with_meta(obj, annotations=obj.metadata.annotations | {RECORD: record}), spec=spec)
    feed.pods(modified(seen))
    return seen


def known(feed: Translator, name: str = "a") -> Pod:
    return feed._pods[f"u-{name}"].reported


def restarted(*pods: PodObject) -> Translator:
    feed = Translator()
    feed.pods(added(*pods))
    return feed


PATCHES: dict[str, dict[str, Any]] = {
    "queue": {"labels": {QUEUE: "nosuch", USER: "ada"}},
    "no queue": {"labels": {USER: "ada"}},
    "user": {"labels": {QUEUE: "mine", USER: "mallory"}},
    "not preemptible": {"annotations": {PREEMPTIBLE: "false"}},
    "not movable": {"annotations": {"dovetail.dev/movable": "false"}},
    "less of the card": {"annotations": {FRACTION: "0.01"}},
    "all of the card": {"annotations": {FRACTION: None}},
    "runs for ever": {"annotations": {RUNTIME: "1000d"}},
    "nothing saved": {"annotations": {"dovetail.dev/checkpoint-interval": None}},
    "more headroom": {"annotations": {"dovetail.dev/headroom": "64", "dovetail.dev/headroom-return": "9d"}},
    "slow start": {"annotations": {"dovetail.dev/startup-time": "9d"}},
    "nvlink": {"annotations": {NVLINK: "required"}},
    "into a gang": {"annotations": {"dovetail.dev/gang": "g", "dovetail.dev/gang-min": "8"}},
    "into a group": {"labels": {GROUP: "g", QUEUE: "mine", USER: "ada"}},
    "nonsense": {"annotations": {"dovetail.dev/nonsense": "1"}},
    "another owner": {"owner_references": ()},
}
STATED = {
    PREEMPTIBLE: "true", FRACTION: "0.9", RUNTIME: "1h", "dovetail.dev/checkpoint-interval": "10m",
    "dovetail.dev/startup-time": "1m", "dovetail.dev/movable": "true", "dovetail.dev/headroom": "1",
}  # fmt: skip


def patched(obj: PodObject, patch: dict[str, Any]) -> PodObject:
    meta = obj.metadata
    changed = dict(patch)
    if "annotations" in patch:
        merged = meta.annotations | patch["annotations"]
        changed["annotations"] = {key: value for key, value in merged.items() if value is not None}
    return with_meta(obj, **changed)


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
@pytest.mark.parametrize("when", ["running", "on its way", "at a restart"])
def test_what_is_written_on_a_bound_pod_changes_nothing_of_it(patch: dict[str, Any], when: str) -> None:
    feed = Translator()
    meta: dict[str, Any] = {"labels": {QUEUE: "mine", USER: "ada"}, "annotations": STATED}
    waiting = asking(ownerReferences=[OWNER | {"kind": "ReplicaSet", "apiVersion": "apps/v1"}], **meta)
    feed.pods(added(waiting))
    if when == "on its way":
        record = feed.decided("u-a", "mine", "n1", "3")
        found = changed_pods(feed.pods(modified(patched(waiting, patch))))
        assert all(one.queue == "mine" for one in found)
        before = structs.replace(known(feed), node="n1", devices=(3,), containers=())
        spec = structs.replace(waiting.spec, node_name="n1")
        seen = structs.replace(patched(waiting, patch), spec=spec)
        feed.pods(modified(with_meta(seen, annotations=seen.metadata.annotations | {RECORD: record})))
    else:
        seen = bind(feed, waiting, queue="mine", devices="3")
        before = known(feed)
        if when == "running":
            feed.pods(modified(patched(seen, patch)))
        else:
            feed = restarted(patched(seen, patch))
    after = known(feed)
    assert differing(before, after) == set()
    assert (after.queue, after.user, after.devices, after.recorded) == ("mine", "ada", (3,), True)
    assert (after.work.preemptible, after.request.gpu_milli, after.gang) == (True, 900, "")
    assert (after.work.max_runtime_ms, after.work.checkpoint_interval_ms) == (3_600_000, 600_000)
    assert (after.owner, after.problem) == ("ml/job-1", None)


def differing(before: Pod, after: Pod) -> set[str]:
    """The fields in which they differ, but for labels, and for the family of the run time, which owners declare."""
    family = structs.replace(after, labels=(), work=structs.replace(after.work, family=before.work.family))
    one, other = structs.asdict(structs.replace(before, labels=())), structs.asdict(family)
    return {name for name in one if one[name] != other[name]}


def test_where_the_bind_fails_the_pod_is_as_it_is_written_now() -> None:
    feed = Translator()
    waiting = asking(labels={QUEUE: "mine"})
    feed.pods(added(waiting))
    feed.decided("u-a", "mine", "n1", "")
    (frozen,) = changed_pods(feed.pods(modified(with_meta(waiting, labels={QUEUE: "other"}))))
    assert (frozen.queue, frozen.recorded) == ("mine", True)
    (after,) = changed_pods(feed.not_bound("u-a"))
    assert (after.queue, after.recorded) == ("other", False)
    assert feed.not_bound("u-a") == []


def test_a_record_that_was_changed_is_not_used_and_that_is_reported() -> None:
    stated: list[str] = []
    feed = Translator(on_findings=lambda about, findings: stated.append(f"{about} {len(findings)}"))
    waiting = asking()
    feed.pods(added(waiting))
    seen = bind(feed, waiting, queue="mine", devices="3")
    forged = patched(seen, {"annotations": bound("u-a", "0", queue="theirs", preemptible=False)})
    assert feed.pods(modified(forged)) == []
    assert feed.pods(modified(forged)) == []
    assert feed.memory.changed == {"u-a"}
    assert "is not what was written when the pod was bound" in str(feed.findings["Pod ml/a"])
    assert feed.pods(modified(seen)) == []
    assert (feed.memory.changed, stated) == (set(), ["Pod ml/a 1", "Pod ml/a 0"])
    assert feed.pods(modified(patched(seen, {"annotations": {RECORD: None}}))) == []
    assert len(feed.memory.changed) == 1


def record(**fields: Any) -> str:
    return json.dumps({"version": 1, "uid": "u-a", "queue": "theirs", "preemptible": False, "devices": "7"} | fields)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", ""),
        (record(uid="u-b"), "is of another pod"),
        (record(version=2), "is of version 2"),
        (record(version=0), "is of version 0"),
        (record(queue=""), "names no queue"),
        (record(gpuMilli=-1), "Expected `int` >= 0"),
        (record(gpuMilli=2000), "Expected `int` <= 1000"),
        (record(isolation="none?"), "Invalid enum value"),
        (record(gangMin=2**60), "Expected `int` <="),
        ("no JSON", "malformed"),
        ("[" * 5000, "has more than 4096 characters"),
        (record(user="u" * 5000), "has more than 4096 characters"),
    ],
)
def test_without_a_record_only_that_counts_which_is_to_nobodys_advantage(text: str, rule: str) -> None:
    meta = {"labels": {QUEUE: "mine", USER: "ada"}, "annotations": STATED | {PREEMPTIBLE: "false"}}
    if text:
        meta["annotations"] = meta["annotations"] | {RECORD: text, "dovetail.dev/devices": "7"}
    feed = restarted(asking(node="n1", **meta))
    found = known(feed)
    assert (found.queue, found.user, found.recorded, found.devices) == ("mine", "ada", False, None)
    assert (found.work.preemptible, found.work.max_runtime_ms, found.work.startup_ms) == (None, 0, 0)
    assert (found.request.gpu_milli, found.request.nvlink_required, found.problem) == (0, False, None)
    assert ("Pod ml/a" in feed.findings) is bool(rule)
    assert rule in str(feed.findings.get("Pod ml/a", ""))


def test_a_pod_that_somebody_else_bound_elsewhere_is_where_it_is_and_has_no_record() -> None:
    feed = Translator()
    waiting = asking(labels={QUEUE: "mine"})
    feed.pods(added(waiting))
    feed.decided("u-a", "mine", "n1", "3")
    (found,) = changed_pods(feed.pods(modified(asking(node="n2", labels={QUEUE: "mine"}))))
    assert (found.node, found.devices, found.recorded) == ("n2", None, False)


def test_of_a_pod_of_another_scheduler_a_record_reports_the_devices_alone() -> None:
    """Where several of ours run under several names, each has its own books."""
    feed = Translator("other")
    feed.pods(added(asking(node="n1", labels={GROUP: "g"}, annotations=bound("u-a", "3", queue="mine", gang=GANG))))
    found = known(feed)
    assert (found.devices, found.queue, found.gang, found.managed) == ((3,), "", "", False)
    feed.pods(added(asking("b", node="n1", annotations={"dovetail.dev/devices": "4"})))
    assert known(feed, "b").devices is None


def test_a_run_time_that_the_kubelet_keeps_counts_where_it_is_shorter() -> None:
    feed = Translator()
    waiting = asking(annotations={RUNTIME: "2h"})
    feed.pods(added(waiting))
    seen = bind(feed, waiting)
    feed.pods(modified(structs.replace(seen, spec=structs.replace(seen.spec, active_deadline_seconds=60))))
    assert known(feed).work.max_runtime_ms == 60_000


@pytest.mark.parametrize(("text", "saved_ms"), [("2026-01-01T00:00:00Z", 1_767_225_600_000), ("yesterday", 0)])
def test_when_it_last_saved_is_read_on(text: str, saved_ms: int) -> None:
    feed = Translator()
    waiting = asking()
    feed.pods(added(waiting))
    seen = bind(feed, waiting)
    feed.pods(modified(patched(seen, {"annotations": {CHECKPOINT: text}})))
    assert known(feed).checkpoint_ms == saved_ms
    assert known(restarted(patched(seen, {"annotations": {CHECKPOINT: text}}))).checkpoint_ms == saved_ms


def group(minimum: int, **annotations: str) -> Any:
    meta = {"name": "g", "namespace": "ml"} | annotations_of(annotations)
    return wire(CoschedulingPodGroup, json.dumps({"metadata": meta, "spec": {"minMember": minimum}}))


def annotations_of(values: dict[str, str]) -> dict[str, Any]:
    labels = {f"dovetail.dev/{key}": value for key, value in values.items() if key in ("queue", "user")}
    rest = {f"dovetail.dev/{key}": value for key, value in values.items() if key not in ("queue", "user")}
    return {"labels": labels, "annotations": rest}


def members(number: int) -> list[PodObject]:
    return [asking(f"m{i}", labels={GROUP: "g"}) for i in range(number)]


def test_what_its_group_states_later_changes_nothing_of_a_bound_pod() -> None:
    feed = Translator()
    feed.gangs.pod_groups(COSCHEDULING, added(group(2, queue="mine")))
    feed.pods(added(*members(2)))
    seen = [bind(feed, one, queue="mine") for one in members(2)]
    before = [known(feed, f"m{i}") for i in range(2)]
    now = group(2, queue="theirs", preemptible="false", nvlink="required", **{"max-runtime": "9d"})
    assert changed_pods(feed.gangs.pod_groups(COSCHEDULING, [Change("modified", now)])) == []
    again = Translator()
    again.gangs.pod_groups(COSCHEDULING, added(now))
    again.pods(added(*seen))
    assert [known(again, f"m{i}") for i in range(2)] == before
    assert {one.queue for one in before} == {"mine"}


@pytest.mark.parametrize("restart", [False, True])
def test_a_gang_that_runs_does_not_come_to_need_more_of_its_pods(restart: bool) -> None:
    """What exceeds its minimum can be taken back pod by pod: to raise it would protect them."""
    feed = Translator()
    (gang,) = gangs(feed.gangs.pod_groups(COSCHEDULING, added(group(2))))
    assert gang.min_count == 2
    feed.pods(added(*members(4)))
    seen = [bind(feed, one) for one in members(4)]
    if restart:
        feed = restarted(*seen)
        events = feed.gangs.pod_groups(COSCHEDULING, added(group(4)))
        assert [one.min_count for one in gangs(events)] == [2]
    else:
        assert gangs(feed.gangs.pod_groups(COSCHEDULING, [Change("modified", group(4))])) == []
    # It may come to need fewer, and once none of them runs it is as declared.
    (gang,) = gangs(feed.gangs.pod_groups(COSCHEDULING, [Change("modified", group(1))]))
    assert gang.min_count == 1
    feed.pods([Change("deleted", one) for one in seen])
    feed.gangs.pod_groups(COSCHEDULING, [Change("modified", group(3))])
    (gang,) = gangs(feed.pods(added(asking("new", labels={GROUP: "g"})))) or [feed.gangs._gangs[GANG][GANG]]
    assert gang.min_count == 3


def native(priority: int | None) -> Any:
    spec = {"schedulingPolicy": {"gang": {"minCount": 1}}} | ({} if priority is None else {"priority": priority})
    return wire(PodGroup, json.dumps({"metadata": {"name": "g", "namespace": "ml"}, "spec": spec}))


@pytest.mark.parametrize(("first", "then", "counts"), [(5, 9, 5), (5, 1, 1), (None, 9, None), (5, None, 5)])
def test_a_group_that_is_made_anew_has_no_higher_priority_while_its_pods_run(
    first: int | None, then: int | None, counts: int | None
) -> None:
    feed = Translator()
    feed.gangs.pod_groups(NATIVE, added(native(first)))
    waiting = asking()
    waiting = structs.replace(
        waiting,
        spec=msgspec.convert(
            msgspec.to_builtins(waiting.spec) | {"schedulingGroup": {"podGroupName": "g"}}, type(waiting.spec)
        ),
    )
    feed.pods(added(waiting))
    bind(feed, waiting)
    feed.gangs.pod_groups(NATIVE, [Change("deleted", native(first))])
    (gang,) = gangs(feed.gangs.pod_groups(NATIVE, added(native(then))))
    assert gang.priority == counts


def test_its_gang_stays_its_gang_though_its_owner_is_written_away() -> None:
    feed = Translator()
    waiting = [asking(f"w{i}", ownerReferences=[OWNER], annotations=INDEX) for i in range(2)]
    feed.pods(added(*waiting))
    feed.gangs.owner(JOB, json_of(TWO))
    seen = [bind(feed, one) for one in waiting]
    gang = known(feed, "w0").gang
    assert gang == "job.batch/ml/train"
    bare = [with_meta(one, owner_references=()) for one in seen]
    for one in bare:
        feed.pods(modified(one))
    assert {known(feed, f"w{i}").gang for i in range(2)} == {gang}
    assert {known(restarted(*bare), f"w{i}").gang for i in range(2)} == {gang}
    assert {known(restarted(*bare), f"w{i}").owner for i in range(2)} == {"ml/job-1"}


def json_of(text: str) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_a_pod_that_is_bound_without_a_record_keeps_the_queue_that_was_first_seen() -> None:
    feed = restarted(asking(node="n1", labels={QUEUE: "mine"}))
    assert feed.pods(modified(asking(node="n1", labels={QUEUE: "mine"}))) == []
    feed.pods(modified(asking(node="n1", labels={QUEUE: "theirs"})))
    feed.pods(modified(asking(node="n1", labels={QUEUE: "theirs"}, annotations=bound("u-a", queue="x"))))
    assert (known(feed).queue, known(feed).recorded) == ("mine", False)


def test_a_gpunode_states_nothing_of_pods_on_other_nodes() -> None:
    """A node in bad hands names a pod of another one: that is reported as it was, and what its own node reports
    stays."""
    feed = Translator()
    feed.pods(added(asking(node="n1", annotations=bound("u-a", "3"))))

    def gpu_node(name: str, given: str) -> GPUNode:
        difference = {"namespace": "ml", "pod": "a", "uid": "u-a", "chosen": "3", "given": given}
        return msgspec.convert({"metadata": {"name": name}, "status": {"differences": [difference]}}, GPUNode)

    assert feed.gpu_nodes(added(gpu_node("n2", "0"))) == []
    assert [one.devices for one in changed_pods(feed.gpu_nodes(added(gpu_node("n1", "5"))))] == [(5,)]
    assert feed.gpu_nodes(added(gpu_node("n2", "1"))) == []
    assert feed.gpu_nodes([Change("deleted", gpu_node("n2", "1"))]) == []
    assert known(feed).devices == (5,)


def test_owners_of_other_namespaces_are_other_owners() -> None:
    """A uid is whatever the pod's writer writes."""
    feed = Translator()
    reference = OWNER | {"kind": "ReplicaSet", "apiVersion": "apps/v1"}
    feed.pods(added(asking(ownerReferences=[reference])))
    feed.pods(added(asking("b", ownerReferences=[reference], namespace="other")))
    assert (known(feed).owner, known(feed, "b").owner) == ("ml/job-1", "other/job-1")


def test_the_text_of_a_record_is_short_and_has_no_defaults() -> None:
    feed = Translator()
    feed.pods(added(asking(labels={USER: "ada"})))
    text = feed.decided("u-a", "default", "n1", "0,1")
    assert json.loads(text) == {"version": 1, "uid": "u-a", "queue": "default", "user": "ada", "devices": "0,1"}
    assert {field.encode_name for field in structs.fields(Bound)} >= set(json.loads(text))
