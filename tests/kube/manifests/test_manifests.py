# SPDX-License-Identifier: Apache-2.0
"""Manifests as people write them and as kubectl prints them become a cluster; what cannot be used is named with its
place."""

import asyncio
import gzip
import io
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from msgspec.structs import replace

from dovetail.cli import cli
from dovetail.core import events as ev
from dovetail.core.model import Gang, Node, Pod
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.api.discovery import discover
from dovetail.kube.manifests.cluster import Manifests, of_documents, read
from dovetail.kube.manifests.documents import ManifestError, read_documents
from dovetail.kube.translate.sources import read_once
from dovetail.kube.translate.translator import Translator
from tools.controlplane.plane import Plane

NODE = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {rack: a}}
status: {allocatable: {cpu: 8, memory: 32Gi, nvidia.com/gpu: 8, pods: 110}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p1}
spec:
  containers:
  - name: main
    resources: {limits: {nvidia.com/gpu: 1, cpu: 500m}}
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: j, uid: made-already}
spec: {completionMode: Indexed, parallelism: 2, completions: 2}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cluster.yaml"


def manifests_of(file: Path, *documents: str, scheduler_name: str | None = None) -> Manifests:
    file.write_text("\n---\n".join(documents))
    return read([str(file)], scheduler_name)


def meta(kind: str, name: str, api_version: str = "v1", **more: str) -> str:
    fields = "".join(f", {key}: {value}" for key, value in more.items())
    return f"{{apiVersion: {api_version}, kind: {kind}, metadata: {{name: {name}}}{fields}}}"


def member_of(job: str, name: str, more: str = "") -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels: {{batch.kubernetes.io/job-completion-index: "0"}}
  ownerReferences: [{{apiVersion: batch/v1, kind: Job, name: {job}, controller: true}}]
spec: {{{more}}}
"""


def nodes(found: Manifests) -> list[Node]:
    return [event.node for event in found.events if isinstance(event, ev.NodeChanged)]


def pods(found: Manifests) -> dict[str, Pod]:
    return {event.pod.name: event.pod for event in found.events if isinstance(event, ev.PodChanged)}


def gangs(found: Manifests) -> dict[str, Gang]:
    return {event.gang.id: event.gang for event in found.events if isinstance(event, ev.GangChanged)}


def complaints(found: Manifests) -> list[str]:
    return [str(problem).partition("cluster.yaml")[2] for problem in found.problems]


def test_bare_objects_get_what_an_api_server_would_add(file: Path) -> None:
    found = manifests_of(file, POD, NODE)
    (node,), pod = nodes(found), pods(found)["p1"]
    assert isinstance(found.events[0], ev.NodeChanged)
    assert (node.name, dict(node.allocatable)["memory"], node.labels) == ("n1", 32 * 2**30, (("rack", "a"),))
    assert (pod.uid, pod.key, pod.priority, pod.managed) == ("Pod/default/p1", "default/p1", 0, True)
    assert pod.request.resources == (("cpu", 500), ("nvidia.com/gpu", 1))
    assert (found.problems, found.skipped) == ((), {})


def test_what_has_no_time_is_the_newest_in_the_order_of_the_input(file: Path) -> None:
    dated = "{apiVersion: v1, kind: Pod, metadata: {name: dated, creationTimestamp: 2026-01-01T00:00:00Z, uid: u}}"
    found = pods(manifests_of(file, meta("Pod", "b"), dated, meta("Pod", "a")))
    newest = 1_767_225_600_000
    assert (found["dated"].created_ms, found["dated"].uid) == (newest, "u")
    assert newest < found["b"].created_ms < found["a"].created_ms < newest + 1000
    assert all(pod.created_ms > 0 for pod in pods(manifests_of(file, meta("Pod", "a"))).values())


def test_nodes_without_a_time_keep_the_order_of_the_input(file: Path) -> None:
    found = manifests_of(file, *(meta("Node", name) for name in ("n3", "n1", "n2")))
    assert [node.name for node in nodes(found)] == ["n3", "n1", "n2"]


def test_a_node_without_allocatable_gets_its_capacity(file: Path) -> None:
    (node,) = nodes(manifests_of(file, NODE.replace("allocatable", "capacity")))
    assert dict(node.allocatable)["nvidia.com/gpu"] == 8


def test_a_generated_name_is_made_up(file: Path) -> None:
    text = "{apiVersion: v1, kind: Pod, metadata: {generateName: job-}}"
    found = pods(manifests_of(file, text, text))
    assert len(found) == 2
    assert all(name.startswith("job-") for name in found)


def test_null_is_absent_and_an_unquoted_date_is_a_text(file: Path) -> None:
    text = """
apiVersion: v1
kind: Pod
metadata: {name: a, labels: , creationTimestamp: null, annotations: {when: 2026-01-01}}
spec: {nodeName: null}
"""
    found = manifests_of(file, text)
    assert found.problems == ()
    assert (pods(found)["a"].labels, pods(found)["a"].node) == ((), "")


def test_pods_of_all_schedulers_are_ours_unless_one_is_named(file: Path) -> None:
    other = "{apiVersion: v1, kind: Pod, metadata: {name: other}, spec: {schedulerName: volcano}}"
    assert [pod.managed for pod in pods(manifests_of(file, meta("Pod", "a"), other)).values()] == [True, True]
    named = pods(manifests_of(file, meta("Pod", "a"), other, scheduler_name="volcano"))
    assert {name: pod.managed for name, pod in named.items()} == {"a": False, "other": True}
    default = pods(manifests_of(file, meta("Pod", "a"), other, scheduler_name="default-scheduler"))
    assert {name: pod.managed for name, pod in default.items()} == {"a": True, "other": False}


def test_bound_pods_hold_their_node_and_finished_ones_are_counted(file: Path) -> None:
    bound = meta("Pod", "bound", spec="{nodeName: n1}", status="{phase: Running}")
    done = [meta("Pod", phase.lower(), status=f"{{phase: {phase}}}") for phase in ("Succeeded", "Failed")]
    found = manifests_of(file, NODE, bound, *done)
    assert {name: pod.node for name, pod in pods(found).items()} == {"bound": "n1"}
    assert found.skipped == {"finished Pod": 2}
    assert found.problems == ()


def test_priority_classes_give_pods_their_priority(file: Path) -> None:
    classes = [
        meta("PriorityClass", "high", "scheduling.k8s.io/v1", value="1000"),
        meta("PriorityClass", "usual", "scheduling.k8s.io/v1", value="7", globalDefault="true"),
    ]
    wanted = {"high": 1000, "system-node-critical": 2_000_001_000}
    asking = [meta("Pod", name, spec=f"{{priorityClassName: {name}}}") for name in wanted]
    number = meta("Pod", "number", spec="{priorityClassName: high, priority: 5}")
    found = manifests_of(file, *asking, number, meta("Pod", "none"), *classes)
    assert {name: pod.priority for name, pod in pods(found).items()} == {**wanted, "number": 5, "none": 7}
    assert found.problems == ()


def test_a_pod_of_a_missing_priority_class_gets_the_usual_priority(file: Path) -> None:
    found = manifests_of(file, meta("Pod", "a", spec="{priorityClassName: nope}"), meta("Pod", "b"))
    assert {name: pod.priority for name, pod in pods(found).items()} == {"a": 0, "b": 0}
    (complaint,) = complaints(found)
    assert complaint.startswith(":1: Pod default/a: spec.priorityClassName: PriorityClass 'nope' is not in the input")


@pytest.mark.parametrize(
    ("group", "labels"),
    [
        (
            "{apiVersion: scheduling.x-k8s.io/v1alpha1, kind: PodGroup, metadata: {name: g}, spec: {minMember: 3}}",
            "labels: {scheduling.x-k8s.io/pod-group: g}",
        ),
        (
            "{apiVersion: scheduling.volcano.sh/v1beta1, kind: PodGroup, metadata: {name: g}, spec: {minMember: 3}}",
            "annotations: {scheduling.k8s.io/group-name: g}",
        ),
        (
            "{apiVersion: scheduling.k8s.io/v1alpha2, kind: PodGroup, metadata: {name: g},"
            " spec: {schedulingPolicy: {gang: {minCount: 3}}}}",
            "",
        ),
    ],
)
def test_pod_groups_of_every_dialect_make_gangs(file: Path, group: str, labels: str) -> None:
    spec = "" if labels else "schedulingGroup: {podGroupName: g}"
    pod = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a, {labels}}}\nspec: {{{spec}}}"
    found = manifests_of(file, pod, group)
    ((gang_id, gang),) = gangs(found).items()
    assert (gang.min_count, pods(found)["a"].gang) == (3, gang_id)
    assert found.problems == ()


def test_owners_are_found_among_the_documents(file: Path) -> None:
    unneeded = meta("Job", "other", "batch/v1", spec="{suspend: true}")
    found = manifests_of(file, member_of("j", "a"), JOB, unneeded)
    assert gangs(found)["job.batch/default/j"].min_count == 2
    assert pods(found)["a"].gang == "job.batch/default/j"
    assert found.skipped == {"Job": 1}
    assert found.problems == ()


def test_an_owner_that_is_missing_or_contradicts_itself_is_named(file: Path) -> None:
    found = manifests_of(file, JOB, member_of("gone", "a"))
    assert complaints(found) == [":9: Pod default/a: 'job.batch/default/gone' is not in the input"]
    assert pods(found)["a"].problem is None and not gangs(found)
    broken = manifests_of(file, member_of("j", "a"), JOB.replace("parallelism: 2", "parallelism: two"))
    (complaint,) = complaints(broken)
    assert complaint.startswith(":12: Job default/j: cannot be read: Expected `int`")


def test_what_is_named_and_not_there_is_a_problem(file: Path) -> None:
    found = manifests_of(
        file,
        "{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {scheduling.x-k8s.io/pod-group: g}}}",
        meta("Pod", "b", spec="{nodeName: n9}"),
        "{apiVersion: scheduling.k8s.io/v1alpha3, kind: PodGroup, metadata: {name: h},"
        " spec: {schedulingPolicy: {basic: {}}, parentCompositePodGroupName: top}}",
    )
    assert complaints(found) == [
        ":1: Pod default/a: 'podgroup.scheduling.x-k8s.io/default/g' is not in the input",
        ":3: Pod default/b: spec.nodeName: 'n9' is not in the input",
        ":5: PodGroup default/h: 'compositepodgroup.scheduling.k8s.io/default/top' is not in the input",
    ]


def test_documents_that_are_a_part_of_a_cluster_may_name_the_rest_of_it(file: Path) -> None:
    file.write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: p, labels: {dovetail.dev/queue: team}}, spec: {nodeName: n}}\n"
        "---\n{apiVersion: v1, kind: Pod, metadata: {name: q, labels: {dovetail.dev/queue: team}}}\n"
    )
    documents = list(read_documents([str(file)]))
    found = read([str(file)])
    assert replace(of_documents(documents), feed=found.feed) == found
    assert [problem.message for problem in of_documents(documents).problems] == [
        "'n' is not in the input", "'team' is not in the input",
    ]  # fmt: skip
    assert of_documents(documents, whole=False).problems == ()
    assert of_documents(documents, whole=False).events == of_documents(documents).events


def test_a_pod_copied_with_its_uid_is_another_pod(file: Path) -> None:
    text = "{apiVersion: v1, kind: Pod, metadata: {name: a, uid: u}}"
    found = pods(manifests_of(file, text, text.replace("name: a", "name: b")))
    assert {pod.uid for pod in found.values()} == {"u", "Pod/default/b"}


def test_a_kind_that_is_called_a_list_and_is_none_is_not_lost(file: Path) -> None:
    found = manifests_of(file, meta("AllowList", "a", "example.com/v1"), "{apiVersion: v1, kind: List, items: }")
    assert complaints(found) == [
        ":1: AllowList a: apiVersion: 'example.com/v1' has no AllowList that is known here: not used"
    ]


def test_storage_queues_and_namespaces_become_events(file: Path) -> None:
    found = manifests_of(
        file,
        meta("StorageClass", "fast", "storage.k8s.io/v1", volumeBindingMode="WaitForFirstConsumer"),
        "{apiVersion: storage.k8s.io/v1, kind: StorageClass,"
        " metadata: {name: usual, annotations: {storageclass.kubernetes.io/is-default-class: 'true'}}}",
        meta("PersistentVolumeClaim", "data", spec="{resources: {requests: {storage: 1Gi}}}"),
        meta("PersistentVolumeClaim", "none", spec="{storageClassName: ''}"),
        meta("PersistentVolume", "v", spec="{capacity: {storage: 1Gi}}"),
        "{apiVersion: v1, kind: Namespace, metadata: {name: ml, labels: {team: a}}}",
        meta("Queue", "research", "dovetail.dev/v1alpha1"),
        NODE,
        "{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {name: n1},"
        " spec: {drivers: [{name: d, allocatable: {count: 3}}]}}",
    )
    claims = {event.claim.name: event.claim for event in found.events if isinstance(event, ev.VolumeClaimChanged)}
    volumes = [event.volume for event in found.events if isinstance(event, ev.VolumeChanged)]
    classes = [event.storage_class for event in found.events if isinstance(event, ev.StorageClassChanged)]
    assert found.problems == ()
    assert {name: claim.storage_class for name, claim in claims.items()} == {"data": "usual", "none": ""}
    assert (claims["data"].namespace, claims["data"].request_bytes) == ("default", 2**30)
    assert [(volume.name, volume.available) for volume in volumes] == [("v", True)]
    assert {found.name: found.wait for found in classes} == {"fast": True, "usual": False}
    assert [event.queue.name for event in found.events if isinstance(event, ev.QueueChanged)] == ["research"]
    assert any(isinstance(event, ev.NamespaceChanged) and event.namespace.name == "ml" for event in found.events)
    assert nodes(found)[-1].attach_limits == (("d", 3),)


def test_workloads_that_nobody_has_created_yet_make_pods(file: Path) -> None:
    template = "{spec: {priorityClassName: high, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 8}}}]}}"
    web = meta("Deployment", "web", "apps/v1", spec=f"{{replicas: 2, template: {template}}}")
    wide = meta("StatefulSet", "wide", "apps/v1", spec=f"{{replicas: 1000000000, template: {template}}}")
    found = manifests_of(file, NODE, web, wide)
    gpus = {name: dict(pod.request.resources)["nvidia.com/gpu"] for name, pod in pods(found).items()}
    assert gpus == {"web-new-0": 8, "web-new-1": 8}
    assert complaints(found) == [
        ":10: StatefulSet default/wide: spec.replicas: 1000000000 must be a whole number from 0 to 100000: no pods are "
        "made",
        ":8: Deployment default/web: spec.template.spec.priorityClassName: PriorityClass 'high' is not in the input: "
        "its priority is taken for 0",
    ]
    assert found.skipped == {"StatefulSet": 1}


def test_objects_that_decide_nothing_are_counted(file: Path) -> None:
    paused = meta("Deployment", "d", "apps/v1", spec="{paused: true}")
    documents = [paused, meta("Service", "s"), meta("Service", "t"), JOB]
    found = manifests_of(file, *documents)
    assert (found.events, found.problems) == ((), ())
    assert found.skipped == {"Deployment": 1, "Job": 1, "Service": 2}


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ("{apiVersion: v1, kind: Pdo, metadata: {name: a}}", "Pdo a: apiVersion: 'v1' has no Pdo that is known here"),
        ("{apiVersion: v2, kind: Pod, metadata: {name: a}}", "Pod a: apiVersion: 'v2': of Pod only v1 can be read"),
        ("{kind: Pod, metadata: {name: a}}", "is no Kubernetes object: it needs apiVersion and kind"),
        ("{apiVersion: v1, kind: 5}", "is no Kubernetes object: it needs apiVersion and kind"),
        ("just text", "is no Kubernetes object: it needs apiVersion and kind"),
        ("{apiVersion: v1, kind: Pod}", "Pod: metadata.name: is missing"),
        ("{apiVersion: v1, kind: Pod, metadata: text}", "Pod: metadata: Expected `object`, got `str`"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {b: 1}}}", "Pod a: metadata.labels[...]: Expected"),
        (NODE.strip(), "Node n1: is there twice, first in "),
    ],
)
def test_what_cannot_be_used_is_a_problem_with_its_place(file: Path, document: str, complaint: str) -> None:
    found = manifests_of(file, NODE.strip(), document)
    assert [node.name for node in nodes(found)] == ["n1"]
    (stated,) = complaints(found)
    assert stated.startswith(f":6: {complaint}")


def test_a_problem_names_the_line_of_the_field(file: Path) -> None:
    text = """
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: a}
  spec:
    containers:
    - name: main
      resources:
        limits:
          cpu: 1
          nvidia.com/gpu: 1x
    nodeSelector:
      rack: 5
"""
    (stated,) = manifests_of(file, text).problems
    assert (stated.line, stated.path, stated.field) == (16, "items[0]", "spec.nodeSelector[...]")
    (stated,) = manifests_of(file, text.replace("rack: 5", "rack: '5'")).problems
    assert (stated.line, stated.field) == (14, "spec.containers[0].resources.limits[nvidia.com/gpu]")
    assert str(stated).startswith(
        f"{file}:14: Pod default/a: spec.containers[0].resources.limits[nvidia.com/gpu]: '1x'"
    )


def test_what_keeps_nodes_and_gangs_from_being_used_is_named(file: Path) -> None:
    group = "apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: g}\nspec:\n  minMember: 0"
    found = manifests_of(file, "{apiVersion: v1, kind: Node, metadata: {name: n}}", group)
    node, gang = complaints(found)
    assert node.startswith(":1: Node n: status.allocatable: missing")
    assert gang.startswith(":7: PodGroup default/g: spec.minMember: '0': must be set")


def as_list(kind: str = "List") -> dict[str, object]:
    documents = [yaml.safe_load(NODE), yaml.safe_load(NODE.replace("n1", "n2"))]
    if kind != "List":
        for document in documents:
            del document["kind"], document["apiVersion"]
    return {"apiVersion": "v1", "kind": kind, "items": documents}


@pytest.mark.parametrize("kind", ["List", "NodeList"])
@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_lists_as_kubectl_prints_them(file: Path, kind: str, write: object, pack: object) -> None:
    assert callable(write)
    assert callable(pack)
    file.write_bytes(pack(write(as_list(kind)).encode()))
    found = read([str(file)])
    assert [node.name for node in nodes(found)] == ["n1", "n2"]
    assert found.problems == ()


def test_a_problem_in_json_names_the_place_in_the_list(file: Path) -> None:
    file.write_text(json.dumps(as_list()).replace('"n2"', "2"))
    found = read([str(file)])
    assert [node.name for node in nodes(found)] == ["n1"]
    assert complaints(found) == [" items[1]: Node 2: metadata.name: Expected `str`, got `int`: not used"]


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    names = {"b.yaml": "n2", "a/z.yml": "n1", "c.json": "n3", "d.yaml.gz": "n4"}
    (tmp_path / "a").mkdir()
    for name, node in names.items():
        text = meta("Node", node).encode()
        if "json" in name:
            text = json.dumps(yaml.safe_load(text)).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    (tmp_path / "notes.txt").write_text("{")
    assert [node.name for node in nodes(read([str(tmp_path)]))] == ["n1", "n2", "n3", "n4"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(NODE.encode())))
    assert [node.name for node in nodes(read(["-"]))] == ["n1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: [1,\n", ":3: is not YAML or JSON: "),
        (b'{"a": 1,\n"b": [1,}\n}', ":2: is not YAML or JSON: "),
        (b"a: 1\nb: {c: 1,\n  c: 2}\n", ":3: is not YAML or JSON: 'c' is there twice"),
        (b"a: 1\nb: !!bool x\n", ":2: is not YAML or JSON: "),
        (b"a: !!int x\n", ":1: is not YAML or JSON: "),
        (b"a: &x [*x]\n", ":1: an anchor holds itself"),
        (b"[" * 100_000, ": is nested too deeply"),
        (b"a: \x00\n", ": is not YAML or JSON: "),
        (b"a: 1\nb: \xe9\n", ":2: is not UTF-8 text"),
        (gzip.compress(NODE.encode() * 100, mtime=0)[:60], ": the gzip data is cut short or broken: "),
        (b"", ": there is no Kubernetes object in it"),
        (b"# only a comment\n---\n", ": there is no Kubernetes object in it"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_line(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ManifestError) as caught:
        read([str(file)])
    assert str(caught.value).startswith(f"{file}{message}")
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_without_manifests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="No such file"):
        read([str(tmp_path / "nothing.yaml")])
    with pytest.raises(ManifestError, match="no file in this folder ends in"):
        read([str(tmp_path)])


DUMPED = """
apiVersion: v1
kind: Node
metadata: {name: manifests-node, labels: {rack: a}}
status: {capacity: {cpu: 8, memory: 32Gi, nvidia.com/gpu: 8, pods: 110}}
---
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: g, namespace: manifests}
spec: {schedulingPolicy: {gang: {minCount: 2}}}
---
apiVersion: v1
kind: Pod
metadata: {name: in-group, namespace: manifests, labels: {a: b}, annotations: {dovetail.dev/duration: 1h}}
spec:
  schedulerName: dovetail
  schedulingGroup: {podGroupName: g}
  containers:
  - {name: main, image: none, resources: {limits: {nvidia.com/gpu: 1, cpu: 500m}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: manifests}
spec:
  completionMode: Indexed
  parallelism: 2
  completions: 2
  template:
    spec: {schedulerName: dovetail, restartPolicy: Never, containers: [{name: main, image: none}]}
"""


@pytest.fixture(scope="module")
def dumped(plane: Plane) -> Iterator[Plane]:
    plane.kubectl("create", "namespace", "manifests")
    plane.kubectl("wait", "--namespace=manifests", "--for=create", "serviceaccount/default", "--timeout=60s")
    plane.kubectl("create", "--filename=-", input=DUMPED)
    active = "--for=jsonpath={.status.active}=2"
    plane.kubectl("wait", "--namespace=manifests", active, "job/train", "--timeout=60s")
    yield plane
    # The plane is that of other tests too: their schedulers would bind these pods.
    plane.kubectl("delete", "--namespace=manifests", "--cascade=foreground", "--timeout=60s", "job/train")
    plane.kubectl("delete", "--namespace=manifests", "--timeout=60s", "pod", "--all")
    plane.kubectl("delete", "node", "manifests-node")


def about_dumped(events: Iterable[ev.Event]) -> set[ev.Event]:
    return {event for event in events if "manifests" in repr(event)}


async def from_server(plane: Plane) -> list[ev.Event]:
    async with Client(load_kubeconfig([plane.kubeconfig])) as client:
        return await read_once(client, await discover(client), Translator("dovetail"))


@pytest.mark.plane
@pytest.mark.parametrize("output", ["yaml", "json"])
@pytest.mark.parametrize("program", ["kubectl", "dovetail"])
def test_what_is_printed_is_what_the_server_has(dumped: Plane, file: Path, program: str, output: str) -> None:
    if program == "dovetail":
        options = [str(file), f"--output={output}", "--kubeconfig", str(dumped.kubeconfig)]
        assert CliRunner().invoke(cli, ["snapshot", *options]).exit_code == 0
    else:
        kinds = "nodes,namespaces,pods,jobs,podgroups.scheduling.k8s.io"
        file.write_text(dumped.kubectl("get", kinds, "--all-namespaces", f"--output={output}"))
    found = read([str(file)], "dovetail")
    reported = about_dumped(asyncio.run(from_server(dumped)))
    assert about_dumped(found.events) == reported
    assert len([event for event in reported if isinstance(event, ev.PodChanged)]) == 3
    assert {gang.min_count for gang in gangs(found).values() if gang.namespace == "manifests"} == {2}


@pytest.mark.plane
def test_bare_manifests_state_what_the_server_makes_of_them(dumped: Plane, file: Path) -> None:
    """But for uids and times, and for the tolerations that admission adds."""

    def stripped(found: Manifests) -> set[object]:
        by_name = {name: pod for name, pod in pods(found).items() if name == "in-group"}
        request = {name: (pod.request.resources, pod.gang, pod.priority, pod.labels) for name, pod in by_name.items()}
        node = [(n.name, n.allocatable, n.problem) for n in nodes(found) if n.name == "manifests-node"]
        return {*request.items(), *node}

    kinds = "nodes,pods,podgroups.scheduling.k8s.io"
    file.write_text(dumped.kubectl("get", kinds, "--all-namespaces", "--output=yaml"))
    assert stripped(manifests_of(file.with_name("bare.yaml"), DUMPED)) == stripped(read([str(file)]))


GPU_NODE = """
apiVersion: dovetail.dev/v1alpha1
kind: GPUNode
metadata: {name: n1}
status:
  gpus: [{index: 0, uuid: GPU-a}, {index: 1, uuid: GPU-b}]
  nvlinks:
  - [0, %s]
  - [12, 0]
"""


def test_a_node_comes_with_the_objects_that_describe_its_wiring(file: Path) -> None:
    found = manifests_of(file, NODE.replace("gpu: 8", "gpu: 2"), GPU_NODE % 12)
    (node,) = nodes(found)
    assert node.layout is not None
    assert (node.layout.nvlinks, found.problems, found.skipped) == (((0, 12), (12, 0)), (), {})


def test_wiring_that_cannot_be_used_is_named_with_its_place_and_the_node_is_used(file: Path) -> None:
    found = manifests_of(file, NODE, GPU_NODE % 11)
    assert [node.problem for node in nodes(found)] == [None]
    assert complaints(found) == [":15: GPUNode n1: status.nvlinks[0][1]: is 11 one way and 12 the other"]
    assert complaints(manifests_of(file, NODE, GPU_NODE % 12)) == [
        ":5: Node n1: status.allocatable[nvidia.com/gpu]: '8': GPUNode has 2 GPUs: they are only counted"
    ]
    assert complaints(manifests_of(file, NODE, GPU_NODE % "many")) == [
        ":15: GPUNode n1: status.nvlinks[0][1]: Expected `int`, got `str`: not used"
    ]
