# SPDX-License-Identifier: Apache-2.0
"""What a pod asks of the wiring of a node, and which GPUs were written down for it."""

from __future__ import annotations

import pytest
import yaml

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Hold
from dovetail.core.model import Pod
from dovetail.core.reasons import Reason
from dovetail.core.state import State
from dovetail.kube.api.resources import JOBS
from dovetail.kube.gangs.declared import OwnerRef
from dovetail.kube.objects.base import Node
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.translate import pods
from dovetail.kube.translate.translator import Translator
from tests.bound import bound
from tests.kube.yaml_objects import added, deleted, pod, wire

NVLINK = "dovetail.dev/nvlink"
WITH_HCA = "spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1, rdma/hca: 1}}}]}"
JOB = OwnerRef(JOBS, "ml", "train")


def asking(
    gpus: int = 4, node: str = "", more: str = "", network: bool = False, devices: str = "", **annotations: str
) -> PodObject:
    limits = f"{{cpu: 1, nvidia.com/gpu: {gpus}{more}}}"
    text = f"""
spec:
  schedulerName: dovetail
  nodeName: "{node}"
  hostNetwork: {str(network).lower()}
  containers: [{{name: main, resources: {{requests: {limits}, limits: {limits}}}}}]
"""
    written = bound("u-a", devices) if devices else {}
    return pod(text, annotations={f"dovetail.dev/{key}": value for key, value in annotations.items()} | written)


def reported(events: list[ev.Event]) -> Pod:
    return [event.pod for event in events if isinstance(event, ev.PodChanged)][-1]


@pytest.mark.parametrize(("value", "required"), [("required", True), ("preferred", False)])
def test_nvlinks_can_be_required(value: str, required: bool) -> None:
    record = reported(Translator().pods(added(asking(nvlink=value))))
    assert (record.request.nvlink_required, record.problem) == (required, None)
    assert record.request == pods.with_nvlink(pods.pod(asking()).request, value)


def test_pods_of_other_schedulers_require_nothing() -> None:
    assert not reported(Translator("other").pods(added(asking(nvlink="required")))).request.nvlink_required


@pytest.mark.parametrize(
    ("of_job", "of_pod", "required"),
    [("required", "", True), ("required", "preferred", True), ("preferred", "required", False), ("", "required", True)],
)
def test_the_word_of_the_object_counts_before_that_of_its_pods(of_job: str, of_pod: str, required: bool) -> None:
    feed = Translator()
    meta = {
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}],
        "labels": {"batch.kubernetes.io/job-completion-index": "0"},
        "annotations": {NVLINK: of_pod} if of_pod else {},
    }
    first = reported(feed.pods(added(pod(**meta))))
    assert first.request.nvlink_required is (of_pod == "required")
    job = yaml.safe_load("{spec: {completionMode: Indexed, parallelism: 2, completions: 2}}")
    events = feed.gangs.owner(JOB, job | {"metadata": {"annotations": {NVLINK: of_job} if of_job else {}}})
    changes = [event.pod for event in events if isinstance(event, ev.PodChanged)]
    assert (changes[-1] if changes else first).request.nvlink_required is required


@pytest.mark.parametrize(
    ("document", "near"),
    [
        (asking(), False),
        (asking(more=", rdma/hca: 1"), True),
        (asking(network=True), True),
        (asking(gpus=0, more=", rdma/hca: 1"), False),
        (asking(gpus=0, network=True), False),
    ],
)
def test_a_pod_that_talks_to_other_nodes_wants_to_be_near_nics(document: PodObject, near: bool) -> None:
    assert pods.pod(document).request.near_nics is near


def test_a_pod_is_placed_only_where_there_is_room_for_its_rdma_devices() -> None:
    feed, state, events = Translator(), State(), list[ev.Event]()
    amounts = "cpu: 9, nvidia.com/gpu: 8, pods: 9"
    with_hcas = {"bare": "", "hca": ", rdma/hca: 2", "none": ", rdma/hca: 0"}
    for name, more in with_hcas.items():
        text = f"metadata: {{name: {name}}}\nstatus: {{allocatable: {{{amounts}{more}}}}}"
        events += feed.node_records.nodes(added(wire(Node, text)))
    for name in ("a", "b", "c"):
        events += feed.pods(added(pod(WITH_HCA, name=name, uid=name)))
    decisions = [one for one in step(state, events, 1) if isinstance(one, Bind | Hold)]
    assert sorted((one.uid, one.node) for one in decisions if isinstance(one, Bind)) == [("a", "hca"), ("b", "hca")]
    [hold] = [one for one in decisions if isinstance(one, Hold)]
    assert {one.reason for one in hold.refusal.nodes} == {Reason.INSUFFICIENT}, hold.refusal


def test_the_gpus_that_were_written_down_are_read_once_the_pod_is_bound() -> None:
    assert reported(Translator().pods(added(asking(node="n1", devices="0,1,6,7")))).devices == (0, 1, 6, 7)
    assert reported(Translator().pods(added(asking(devices="0,1,6,7")))).devices is None
    assert reported(Translator().pods(added(asking(node="n1")))).devices is None


@pytest.mark.parametrize(
    ("document", "value", "rule"),
    [
        (asking(node="n1", devices="0,1,2"), "0,1,2", "must name 4 different GPUs by their indices, as in 0,1: not"),
        (asking(node="n1", devices="0,1,2,2"), "0,1,2,2", "must name 4 different GPUs"),
        (asking(node="n1", devices="all"), "all", "must name 4 different GPUs"),
        (asking(gpus=0, node="n1", devices="0"), "0", "the pod asks for no GPUs: not used"),
    ],
)  # fmt: skip
def test_what_cannot_be_true_of_them_is_reported_and_keeps_the_pod_from_nothing(
    document: PodObject, value: str, rule: str
) -> None:
    stated: list[str] = []
    feed = Translator(on_findings=lambda about, findings: stated.append(f"{about} {len(findings)}"))
    record = reported(feed.pods(added(document)))
    assert (record.devices, record.problem) == (None, None)
    ((finding,),) = feed.findings.values()
    assert (finding.kind, finding.name, finding.problem.field, finding.problem.value) == (
        "Pod", "ml/a", "metadata.annotations[dovetail.dev/bound].devices", value,
    )  # fmt: skip
    assert finding.problem.rule.startswith(rule)
    feed.pods(added(document))
    feed.pods(deleted(document))
    assert stated == ["Pod ml/a 1", "Pod ml/a 0"]
