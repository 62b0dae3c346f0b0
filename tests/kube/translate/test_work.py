# SPDX-License-Identifier: Apache-2.0
"""What is known of the work that a pod does: its family, how long it runs at most, and what it loses."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.core import events as ev
from dovetail.core.model import NO_WORK, Pod, Work
from dovetail.kube.gangs.dialects import COSCHEDULING
from dovetail.kube.translate import pods as translate
from dovetail.kube.translate.annotations import PREFIX
from dovetail.kube.translate.translator import Translator
from dovetail.kube.translate.work import RUN
from tests.kube.yaml_objects import Change, added, pod, wire

MINUTE_MS = 60_000


def annotated(text: str = "", **values: str) -> Pod:
    keys = {PREFIX + key.replace("_", "-"): value for key, value in values.items()}
    return translate.pod(pod(text, annotations=keys))


def owned(kind: str, name: str, image: str = "train:1", **metadata: Any) -> str:
    containers = f"{{schedulerName: dovetail, containers: [{{name: main, image: '{image}'}}, {{image: other}}]}}"
    owner = {"apiVersion": "batch/v1", "kind": kind, "name": name, "controller": True}
    return translate.pod(pod(f"spec: {containers}", ownerReferences=[owner], **metadata)).work.family


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("nightly-29345670", "nightly"),
        ("train", "train"),
        ("train-7", "train"),
        ("train-007-x7k2p", "train"),
        ("web-5d4b8c7f9-x7k2p", "web"),
        ("eval-2026-11-21", "eval"),
        ("run.3f2a91c", "run"),
        ("job_12", "job"),
        ("tune-3f2504e0-4f89-11d3-9a0c-0305e82c3301", "tune"),
        ("train-llama-70b", "train-llama-70b"),
        ("resnet50", "resnet50"),
        ("data-facade", "data-facade"),
        ("bert-large", "bert-large"),
        ("12345", "12345"),
        ("12345-7", "12345"),
        ("x7k2p", "x7k2p"),
    ],
)
def test_what_differs_from_run_to_run_is_no_part_of_the_family(name: str, base: str) -> None:
    assert RUN.sub("", name) == base


def test_a_family_is_of_one_owner_in_one_namespace_with_one_image() -> None:
    family = owned("Job", "nightly-29345670")
    assert family == "ml/Job/nightly@train:1" == owned("Job", "nightly-29345671")
    others = {
        owned("Job", "nightly-29345670", namespace="other"),
        owned("Job", "weekly-1"),
        owned("Job", "nightly-1", image="train:2"),
        owned("ReplicaSet", "nightly-5d4b8c7f9"),
    }
    assert len(others | {family}) == 5


def test_the_workload_object_of_the_labels_counts_before_the_controller() -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "big-3", "jobset.sigs.k8s.io/replicatedjob-name": "workers"}
    assert owned("Job", "big-3-workers-0", labels=labels) == "ml/JobSet/big@train:1"


def test_a_pod_that_nothing_makes_is_its_own_family() -> None:
    assert translate.pod(pod(name="debug-x7k2p")).work.family == "ml/Pod/debug@"
    assert translate.pod(pod("spec: {schedulerName: dovetail, containers: []}")).work.family == "ml/Pod/a@"


def test_equal_work_is_one_object() -> None:
    one, two = (translate.pod(pod(uid=uid)).work for uid in ("a", "b"))
    assert one is two


def test_annotations_and_the_spec_report_the_work() -> None:
    text = (
        "spec: {schedulerName: dovetail, preemptionPolicy: Never, terminationGracePeriodSeconds: 120,"
        " activeDeadlineSeconds: 3600}"
    )
    found = annotated(text, max_runtime="2h", checkpoint_interval="30m", startup_time="90s", preemptible="false")
    assert found.problem is None
    assert found.work == Work("ml/Pod/a@", 60 * MINUTE_MS, 30 * MINUTE_MS, 90_000, False, False, 120_000)
    assert annotated(text, max_runtime="30m").work.max_runtime_ms == 30 * MINUTE_MS


@pytest.mark.parametrize(("seconds", "grace_ms"), [("null", 30_000), ("0", 0), ("-1", 1000), ("45", 45_000)])
def test_a_grace_period_is_that_of_the_api_server(seconds: str, grace_ms: int) -> None:
    assert annotated(f"spec: {{terminationGracePeriodSeconds: {seconds}, schedulerName: dovetail}}").work.grace_ms == (
        grace_ms
    )


def test_the_user_of_the_pod_and_its_last_checkpoint() -> None:
    found = translate.pod(
        pod(labels={PREFIX + "user": "ada"}, annotations={PREFIX + "last-checkpoint": "2026-01-01T00:00:00Z"})
    )
    assert (found.user, found.checkpoint_ms, found.problem) == ("ada", 1_767_225_600_000, None)


@pytest.mark.parametrize(
    "key", ["max-runtime", "checkpoint-interval", "startup-time", "last-checkpoint", "preemptible"]
)
def test_a_value_that_cannot_be_read_keeps_a_pod_pending_and_counts_as_none(key: str) -> None:
    found = annotated(**{key: "soon"})
    assert found.problem is not None
    assert (found.problem.field, found.problem.value) == (f"metadata.annotations[dovetail.dev/{key}]", "soon")
    assert found.work == translate.pod(pod()).work


def test_a_pod_of_another_scheduler_has_no_work_that_is_known() -> None:
    text = "spec: {schedulerName: default-scheduler, activeDeadlineSeconds: 5}"
    labels = {PREFIX + "user": "ada", PREFIX + "queue": "q"}
    found = translate.pod(pod(text, labels=labels))
    assert (found.work, found.user, found.queue) == (NO_WORK, "", "")


def changed_pod(events: list[ev.Event]) -> Pod:
    (found,) = [event.pod for event in events if isinstance(event, ev.PodChanged)]
    return found


def indexed(**annotations: str) -> Any:
    keys = {PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
    return pod(
        ownerReferences=[{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}],
        labels={"batch.kubernetes.io/job-completion-index": "0"},
        annotations=keys,
    )


JOB = {"completionMode": "Indexed", "parallelism": 2, "completions": 2}


def test_of_several_limits_of_the_run_time_the_smallest_counts() -> None:
    def limit_ms(job: str, deadline_s: int | None, own: str) -> int:
        feed = Translator()
        events = feed.pods(added(indexed(**({"max_runtime": own} if own else {}))))
        (ref,) = feed.gangs.wanted_owners()
        meta = {"annotations": {PREFIX + "max-runtime": job}}
        events += feed.gangs.owner(ref, {"metadata": meta, "spec": JOB | {"activeDeadlineSeconds": deadline_s}})
        return [event.pod.work.max_runtime_ms for event in events if isinstance(event, ev.PodChanged)][-1]

    assert limit_ms("2h", None, "") == 120 * MINUTE_MS
    assert limit_ms("2h", 3600, "") == 60 * MINUTE_MS
    assert limit_ms("2h", 3600, "30m") == 30 * MINUTE_MS


def plain(uid: str = "u-a", **annotations: str) -> Any:
    """A pod of a Job that is not indexed."""
    keys = {PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "sweep", "controller": True}
    return pod(uid=uid, name=uid, ownerReferences=[owner], annotations=keys)


def test_what_a_job_that_is_no_gang_states_counts_and_its_pods_do_not_wait_for_it() -> None:
    feed = Translator()
    (event,) = feed.pods(added(plain()))
    assert isinstance(event, ev.PodChanged)
    assert (event.pod.gang, event.pod.problem) == ("", None)
    (ref,) = feed.gangs.wanted_owners()
    meta = {"labels": {PREFIX + "queue": "research"}, "annotations": {PREFIX + "preemptible": "false"}}
    found = changed_pod(
        feed.gangs.owner(ref, {"metadata": meta, "spec": {"parallelism": 3, "activeDeadlineSeconds": 600}})
    )
    assert (found.gang, found.queue, found.problem) == ("", "research", None)
    assert (found.work.max_runtime_ms, found.work.preemptible) == (10 * MINUTE_MS, False)
    # It is read once: its pods come and go without waiting for each other.
    (event,) = feed.pods(added(plain("u-b")))
    assert isinstance(event, ev.PodChanged)
    assert event.pod.work == found.work
    assert feed.gangs.wanted_owners() == []


def test_a_job_that_is_gone_keeps_its_pods_from_nothing() -> None:
    feed = Translator()
    feed.pods(added(plain()))
    (ref,) = feed.gangs.wanted_owners()
    assert feed.gangs.owner(ref, None) == []
    assert feed.gangs.wanted_owners() == []


def test_a_bad_value_of_a_job_keeps_its_pods_pending_and_names_the_job() -> None:
    feed = Translator()
    feed.pods(added(plain()))
    (ref,) = feed.gangs.wanted_owners()
    found = changed_pod(
        feed.gangs.owner(ref, {"metadata": {"annotations": {PREFIX + "max-runtime": "long"}}, "spec": {}})
    )
    assert found.problem is not None
    assert found.problem.field == "Job ml/sweep metadata.annotations[dovetail.dev/max-runtime]"


def test_what_the_job_states_is_forgotten_with_it() -> None:
    feed = Translator()
    feed.pods(added(indexed(startup_time="2m", preemptible="true")))
    (ref,) = feed.gangs.wanted_owners()
    meta = {"annotations": {PREFIX + "startup-time": "3m", PREFIX + "preemptible": "false"}, "labels": {}}
    labels = {PREFIX + "queue": "research", PREFIX + "user": "ada"}
    found = changed_pod(feed.gangs.owner(ref, {"metadata": meta | {"labels": labels}, "spec": JOB}))
    assert (found.queue, found.user, found.work.startup_ms) == ("research", "ada", 3 * MINUTE_MS)
    assert found.work.preemptible is False
    again = changed_pod(feed.gangs.owner(ref, {"metadata": {}, "spec": JOB}))
    assert (again.queue, again.user, again.work.startup_ms, again.work.preemptible) == ("", "", 2 * MINUTE_MS, True)


def test_the_newest_checkpoint_of_group_and_pod_counts() -> None:
    key, group = PREFIX + "last-checkpoint", "{metadata: {name: g, namespace: ml, annotations: {%s}}}"
    feed = Translator()
    member = pod(labels={"scheduling.x-k8s.io/pod-group": "g"}, annotations={key: "2026-01-01T00:00:10Z"})
    feed.pods(added(member))

    def saved(moment: str) -> int:
        change = wire(COSCHEDULING.kind, group % f"{key}: '{moment}'")
        events = feed.gangs.pod_groups(COSCHEDULING, [Change("modified", change)])
        pods = [event.pod for event in events if isinstance(event, ev.PodChanged)]
        return pods[-1].checkpoint_ms if pods else 0

    assert saved("2026-01-01T00:00:20Z") == 1_767_225_620_000
    assert saved("2026-01-01T00:00:05Z") == 1_767_225_610_000
