# SPDX-License-Identifier: Apache-2.0
"""`dovetail snapshot` writes the objects that the scheduler reads; what a file lacks is unknown, not wrong."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import discover
from dovetail.kube.manifests import cluster
from dovetail.kube.translate.sources import read_once
from dovetail.kube.translate.translator import Translator
from dovetail.playground import Fault, Playground
from tests.kube.reading.test_gpu_exporters import agent
from tests.live.conftest import eventually

BIG = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "16"}}}

CONTAINER = """
      - name: main
        image: registry.example/train
        command: [sh, -c, "echo of-no-concern"]
        env: [{name: TOKEN, value: of-no-concern}]
        resources: {limits: {nvidia.com/gpu: "4", cpu: "8", memory: 64Gi}}
"""
OBJECTS = f"""
apiVersion: v1
kind: Node
metadata:
  name: gpu-1
  labels: {{dovetail.dev/rack: r1, nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}}
spec: {{taints: [{{key: gpu, value: "yes", effect: NoSchedule}}]}}
status: {{allocatable: {{cpu: "96", memory: 1Ti, pods: "110", nvidia.com/gpu: "8"}}}}
---
apiVersion: v1
kind: Namespace
metadata: {{name: ml, labels: {{team: a}}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: queues.dovetail.dev}}
spec:
  group: dovetail.dev
  names: {{plural: queues, singular: queue, kind: Queue, listKind: QueueList}}
  scope: Cluster
  versions: [{{name: v1alpha1, served: true, storage: true, subresources: {{status: {{}}}}}}]
---
apiVersion: dovetail.dev/v1alpha1
kind: Queue
metadata: {{name: research}}
spec: {{guarantee: {{gpu: "8"}}, namespaceSelector: {{matchLabels: {{team: a}}}}}}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  namespace: ml
  annotations:
    dovetail.dev/topology-preferred: rack
    kubectl.kubernetes.io/last-applied-configuration: of-no-concern
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  template:
    metadata: {{labels: {{dovetail.dev/queue: research}}}}
    spec:
      schedulerName: dovetail
      restartPolicy: Never
      tolerations: [{{operator: Exists}}]
      containers:{CONTAINER}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: all, namespace: ml}}
spec: {{selector: {{}}, minAvailable: 1}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data, namespace: ml}}
spec: {{storageClassName: fast, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: eval, namespace: ml, labels: {{app: eval}}}}
spec:
  affinity:
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - {{topologyKey: kubernetes.io/hostname, labelSelector: {{}}, namespaceSelector: {{}}}}
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]
  containers:{CONTAINER}
"""


async def pods(playground: Playground) -> int:
    return len(playground.store.list("pods"))


@pytest.fixture
async def playground() -> AsyncIterator[Playground]:
    playground = Playground()
    await playground.start()
    for document in yaml.safe_load_all(OBJECTS):
        playground.put(document)
    await eventually(lambda: pods(playground), lambda found: found == 3)
    yield playground
    await playground.stop()


async def run(playground: Playground, tmp_path: Path, *arguments: str) -> Result:
    config = playground.kubeconfig(tmp_path / "kubeconfig")
    return await asyncio.to_thread(CliRunner().invoke, cli, [*arguments, "--kubeconfig", str(config)])


def answer(*arguments: str, stdin: str = "") -> Any:
    result = CliRunner().invoke(cli, [*arguments, "-o", "json"], input=stdin)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("output", ["json", "yaml"])
async def test_a_snapshot_equals_the_lists_of_the_server(playground: Playground, tmp_path: Path, output: str) -> None:
    file = tmp_path / "cluster"
    result = await run(playground, tmp_path, "snapshot", str(file), "-o", output)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith(f"{file}: ")
    async with Client(ClusterConfig(playground.url)) as client:
        reported = await read_once(client, await discover(client), Translator("dovetail"))
    found = cluster.read([str(file)], "dovetail")
    assert found.problems == ()
    assert set(found.events) == set(reported)
    assert "of-no-concern" not in file.read_text()


async def test_leases_by_which_processes_are_heard_are_left_out(playground: Playground, tmp_path: Path) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "node-1", "namespace": "ml"}}
    playground.put(lease)
    text = (await run(playground, tmp_path, "snapshot")).stdout
    assert "Lease" not in {one["kind"] for one in json.loads(text)["items"]}


async def test_commands_answer_from_it(playground: Playground, tmp_path: Path) -> None:
    text = (await run(playground, tmp_path, "snapshot")).stdout
    assert [(one["job"], one["code"]) for one in answer("queue", "-f", "-", stdin=text)["jobs"]] == [
        ("ml/train", "Placed"),
    ]  # fmt: skip
    assert {one["pod"]: one["code"] for one in answer("simulate", "-", stdin=text)["waiting"]}.keys() == {"ml/eval"}
    assert answer("why", "ml/train", "-f", "-", stdin=text)["gang"]["needs"] == 2


@pytest.mark.parametrize("command", ["doctor", "status", "top"])
async def test_commands_that_show_facts_answer_the_same_from_it(
    playground: Playground, tmp_path: Path, command: str
) -> None:
    playground.put(agent("gpu-1"))
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "big", "namespace": "ml"}}
    playground.put(document | {"spec": {"schedulerName": "dovetail", "containers": [BIG]}})
    live = await run(playground, tmp_path, command, "-o", "json")
    file = tmp_path / "snapshot"
    assert (await run(playground, tmp_path, "snapshot", str(file))).exit_code == 0
    saved = CliRunner().invoke(cli, [command, "-f", str(file), "-o", "json"])
    assert saved.exit_code == live.exit_code and saved.stdout
    one, other = (re.sub(r"[0-9]+\.[0-9]+|[0-9]{4}-[^ \"]+Z|[0-9]{10,}", "0", found.stdout) for found in (live, saved))
    assert json.loads(one) == json.loads(other)


async def test_the_time_is_that_of_the_snapshot(
    playground: Playground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (await run(playground, tmp_path, "snapshot")).stdout
    (record,) = (one for one in json.loads(text)["items"] if one["kind"] == "Snapshot")
    taken_ms = round(datetime.fromisoformat(record["takenAt"]).timestamp() * 1000)
    monkeypatch.setattr("dovetail.cli.cluster.now_ms", lambda: taken_ms + 86_400_000)
    assert answer("queue", "-f", "-", stdin=text)["now_ms"] == taken_ms
    assert answer("queue", "-f", "-", "--at", "2027-01-01T00:00:00Z", stdin=text)["now_ms"] == 1_798_761_600_000


async def test_names_are_redacted_on_option(playground: Playground, tmp_path: Path) -> None:
    file, names = tmp_path / "snapshot", tmp_path / "names"
    result = await run(playground, tmp_path, "snapshot", str(file), "--redact", "--names", str(names))
    assert result.exit_code == 0
    assert [name for name in ("train", "eval", "research", "gpu-1", "fast") if name in file.read_text()] == []
    (job,) = answer("queue", "-f", str(file))["jobs"]
    back = json.loads(names.read_text())
    assert [back[word] for word in job["job"].split("/")] == ["ml", "train"] and back[job["queue"]] == "research"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["snapshot", "--names", "x"], "--names needs --redact"),
        (["top", "-f", "FILE", "--prometheus", "http://x"], "--file and --prometheus exclude each other"),
        (["doctor", "-f", "FILE", "--fabric", "x/y"], "--file and --fabric exclude each other"),
        (["doctor", "-f", "FILE", "--scheduler-name", "x"], "--file and --scheduler-name exclude each other"),
        (["status", "-f", "FILE", "--context", "x"], "--file and --context exclude each other"),
    ],
)
def test_options_that_exclude_each_other(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


RECORD = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Snapshot", "takenAt": "2026-01-31T12:00:00Z", "dovetail": "9"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}, "it is no snapshot"),
        (RECORD, "it has no facts for `dovetail doctor`: dovetail 9 did not save them"),
        (RECORD | {"redacted": True}, "it has no facts for `dovetail doctor`: names are redacted in it"),
        (RECORD | {"unread": ["doctor: forbidden"]}, "doctor: forbidden"),
        (RECORD | {"facts": {"doctor": {"seen": 3}}}, "this version cannot read the facts of dovetail 9"),
        (RECORD | {"takenAt": "noon"}, "Snapshot: Invalid RFC3339"),
        (RECORD | {"unread": 3}, "Snapshot: Expected `array`, got `int` - at `$.unread`"),
    ],
)
def test_what_lacks_facts_is_named(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    file = tmp_path / "snapshot"
    file.write_text(json.dumps(record))
    result = CliRunner().invoke(cli, ["doctor", "-f", str(file)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: {file}") and message in result.stderr, result.stderr


@pytest.mark.parametrize("plural", ["persistentvolumeclaims", "jobs", "pods"])
async def test_what_may_not_be_read_is_named(playground: Playground, tmp_path: Path, plural: str) -> None:
    playground.faults.add(Fault("answer", "GET", plural, status=403))
    result = await run(playground, tmp_path, "snapshot")
    assert result.exit_code == 3
    assert f"not read: {'Job ml/train' if plural == 'jobs' else plural}" in result.stderr
    assert "gpu-1" in {one["metadata"]["name"] for one in json.loads(result.stdout)["items"]}


def without(*kinds: str) -> str:
    return yaml.safe_dump_all([one for one in POD_OF_ALL if one["kind"] not in kinds])


POD_OF_ALL = list(
    yaml.safe_load_all(f"""
apiVersion: v1
kind: Node
metadata: {{name: gpu-1}}
status: {{allocatable: {{cpu: "96", memory: 1Ti, pods: "110", nvidia.com/gpu: "8"}}}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: train, namespace: ml}}
spec: {{completionMode: Indexed, completions: 1, parallelism: 1}}
---
apiVersion: v1
kind: Namespace
metadata: {{name: ml, labels: {{dovetail.dev/queue: research}}}}
---
apiVersion: dovetail.dev/v1alpha1
kind: Queue
metadata: {{name: research}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data, namespace: ml}}
spec: {{storageClassName: fast, volumeName: data}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {{name: data}}
spec: {{storageClassName: fast, claimRef: {{namespace: ml, name: data}}}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: nic}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {{name: gpu-1-nic}}
spec: {{driver: nic.example, nodeName: gpu-1, pool: {{name: gpu-1, resourceSliceCount: 1}}, devices: [{{name: nic-0}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: nic, namespace: ml}}
spec: {{devices: {{requests: [{{name: nic, exactly: {{deviceClassName: nic}}}}]}}}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: high}}
value: 1000
---
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {{name: group, namespace: ml}}
spec: {{schedulingPolicy: {{gang: {{minCount: 1}}}}}}
---
apiVersion: v1
kind: Pod
metadata:
  name: in-job
  namespace: ml
  labels: {{batch.kubernetes.io/job-completion-index: "0"}}
  ownerReferences: [{{apiVersion: batch/v1, kind: Job, name: train, uid: train, controller: true}}]
spec:
  priorityClassName: high
  resourceClaims: [{{name: nic, resourceClaimName: nic}}]
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]
  containers:{CONTAINER}
---
apiVersion: v1
kind: Pod
metadata: {{name: in-group, namespace: ml}}
spec:
  schedulingGroup: {{podGroupName: group}}
  containers:{CONTAINER}
""")
)
KINDS = [one["kind"] for one in POD_OF_ALL if one["kind"] not in ("Node", "Pod", "ResourceSlice")]


@pytest.mark.parametrize("missing", [*([kind] for kind in KINDS), KINDS], ids=lambda kinds: "+".join(kinds))
def test_what_is_missing_is_unknown_and_never_wrong(missing: list[str]) -> None:
    """No pod is invalid, never starts, or is to be deleted, because a file lacks an object that it names."""
    result = CliRunner().invoke(cli, ["simulate", "-", "-o", "json"], input=without(*missing))
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert {one["pod"] for one in (*found["placed"], *found["waiting"])} == {"ml/in-job", "ml/in-group"}
    assert {one["when"] for one in found["waiting"]} <= {"NotYet"}
    assert "InvalidInput" not in result.output and "delete" not in result.output
    if missing not in (["PersistentVolume"], ["DeviceClass"], ["Queue"]):
        assert "not in the input" in result.stderr
        assert "`dovetail snapshot` saves" in result.stderr or missing == ["PriorityClass"]


def test_a_missing_object_that_many_name_is_reported_once() -> None:
    pod = POD_OF_ALL[-1]
    many = [{**pod, "metadata": {**pod["metadata"], "name": f"pod-{i}"}} for i in range(50)]
    result = CliRunner().invoke(cli, ["simulate", "-"], input=yaml.safe_dump_all([POD_OF_ALL[0], *many]))
    (line,) = [line for line in result.stderr.splitlines() if "attention" in line]
    assert line.endswith("'podgroup.scheduling.k8s.io/ml/group' is not in the input; 49 more name it")
