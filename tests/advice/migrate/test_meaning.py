# SPDX-License-Identifier: Apache-2.0
"""What was meant for another scheduler is what Dovetail reads once migrated; nothing is dropped in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.source import documents
from dovetail.advice.migrate.step import MigrationOutcome, MigrationTarget
from tests.advice.migrate.moved import Meant, left, meant, migrated, values

CASES = Path(__file__).parent / "cases"
NAMES = sorted(file.stem for file in CASES.glob("*.yaml"))
TARGETS = [(), (MigrationTarget.NATIVE,), (MigrationTarget.DRA,), (MigrationTarget.NATIVE, MigrationTarget.DRA)]
FOREIGN = (
    "alpha.kubernetes.io/", "beta.kubernetes.io/", "volcano.sh/", "kueue.x-k8s.io/", "kai.scheduler/", "runai/",
    "yunikorn.apache.org/", "hami.io/", "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/use-",
    "scheduling.x-k8s.io/", "scheduling.k8s.io/group-name",
)  # fmt: skip
OTHERS = ("volcano", "kai-scheduler", "runai-scheduler", "yunikorn", "hami-scheduler")


def text_of(name: str) -> str:
    return (CASES / f"{name}.yaml").read_text()


def read(name: str, *targets: MigrationTarget) -> Meant:
    return meant(migrated(text_of(name), *targets).text)


def keys(field: Field) -> list[Field]:
    found = []
    for _, inner in field.entries():
        found += [inner, *keys(inner)]
    for inner in field.each():
        found += keys(inner)
    return found


@pytest.mark.parametrize("targets", TARGETS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_twice_changes_nothing_more(name: str, targets: tuple[MigrationTarget, ...]) -> None:
    once = migrated(text_of(name), *targets)
    twice = migrated(once.text, *targets)
    assert once.text != text_of(name) or not any(one.outcome is MigrationOutcome.CHANGED for one in once.notes)
    assert twice.text == once.text
    assert not any(one.outcome is MigrationOutcome.CHANGED for one in twice.notes)


@pytest.mark.parametrize("targets", TARGETS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_remaining_fields_are_reported(name: str, targets: tuple[MigrationTarget, ...]) -> None:
    found = migrated(text_of(name), *targets)
    reported = {(one.object, one.path) for one in found.notes if one.outcome is not MigrationOutcome.CHANGED}
    for each in documents("test.yaml", found.text):
        for whole in each.objects():
            shown = f"{whole.at('kind').text} "
            for field in keys(whole):
                if field.name.startswith(FOREIGN) or f".{FOREIGN[0]}" in field.name:
                    assert any(path == str(field) for object_, path in reported if object_.startswith(shown)), str(
                        field
                    )
            assert not any(field.value in OTHERS for field in keys(whole) if field.name == "schedulerName")


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_those_of_the_file_as_it_was(name: str) -> None:
    lines = text_of(name).splitlines()
    for one in migrated(text_of(name)).notes:
        last = one.path.rpartition("[")[2].rstrip("]") if one.path.endswith("]") else one.path.rpartition(".")[2]
        if not last.isdecimal() and last not in ("schedulerName", "namespace"):
            assert last in lines[one.line - 1], one


def test_retired_names() -> None:
    cron, deployment = values(migrated(text_of("retired")).text)
    template = cron["spec"]["jobTemplate"]["spec"]["template"]
    assert cron["apiVersion"] == "batch/v1"
    assert template["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert template["spec"]["nodeSelector"]["node.kubernetes.io/instance-type"] == "p2.xlarge"
    assert template["spec"]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert deployment["apiVersion"] == "apps/v1"
    assert deployment["spec"]["selector"] == {"matchLabels": {"app": "d"}}
    assert [path.rpartition("[")[2] for path in left(migrated(text_of("retired")))] == [
        "alpha.kubernetes.io/nvidia-gpu-name]"
    ]


def test_comments_and_order_stay() -> None:
    text = migrated(text_of("retired")).text
    assert text.startswith("# a job of 2017\napiVersion: batch/v1\nkind: CronJob\n")
    assert "nvidia.com/gpu: 2  # two\n" in text and "p2.xlarge  # K80\n" in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nodeSelector: {beta.kubernetes.io/arch: amd64}", {"nodeSelector": {"kubernetes.io/arch": "amd64"}}),
        ("tolerations: [{key: node-role.kubernetes.io/master}]",
         {"tolerations": [{"key": "node-role.kubernetes.io/control-plane"}]}),
        ("nodeSelector: {beta.kubernetes.io/os: linux, kubernetes.io/os: linux}",
         {"nodeSelector": {"kubernetes.io/os": "linux"}}),
        ("topologySpreadConstraints: [{topologyKey: failure-domain.beta.kubernetes.io/zone}]",
         {"topologySpreadConstraints": [{"topologyKey": "topology.kubernetes.io/zone"}]}),
    ],
)  # fmt: skip
def test_labels_where_pods_name_them(old: str, new: dict[str, Any]) -> None:
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers: []\n  {old}\n"
    assert values(migrated(text).text)[0]["spec"] == {"containers": []} | new


def test_labels_that_contradict_each_other_are_left() -> None:
    text = """\
    apiVersion: v1
    kind: Pod
    metadata: {name: p}
    spec:
      containers: []
      nodeSelector: {beta.kubernetes.io/os: linux, kubernetes.io/os: windows}
    """
    assert left(migrated(text)) == ["spec.nodeSelector[beta.kubernetes.io/os]"]


def test_a_request_alone_gets_a_limit() -> None:
    text = """\
    apiVersion: v1
    kind: Pod
    metadata: {name: p}
    spec:
      containers: [{name: a, image: b, resources: {requests: {alpha.kubernetes.io/nvidia-gpu: 1}}}]
    """
    pod = meant(migrated(text).text.replace("spec:", "spec:\n  schedulerName: dovetail", 1)).pods["p"]
    assert dict(pod.request.resources)["nvidia.com/gpu"] == 1


def test_claims_of_before_v1() -> None:
    text = """\
    apiVersion: resource.k8s.io/v1beta1
    kind: ResourceClaim
    metadata: {name: c}
    spec: {devices: {requests: [{name: gpu, deviceClassName: gpu.nvidia.com, count: 2}]}}
    """
    (claim,) = values(migrated(text).text)
    assert claim["apiVersion"] == "resource.k8s.io/v1"
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": 2}
    assert claim["spec"]["devices"]["requests"] == [{"name": "gpu", "exactly": exactly}]


def test_volcano() -> None:
    found = read("volcano")
    assert not found.problems
    assert found.minimums == {
        "jobset.jobset.x-k8s.io/default/train/master": 1,
        "jobset.jobset.x-k8s.io/default/train/worker": 3,
        "job.batch/default/single": 2,
        "podgroup.scheduling.volcano.sh/default/g": 2,
    }
    assert {pod.queue for name, pod in found.pods.items() if name.startswith("train")} == {"research"}
    assert {dict(pod.request.resources)["nvidia.com/gpu"] for name, pod in found.pods.items() if name != "p0"} == {8}
    shared = found.pods["p0"].request
    assert dict(shared.resources) == {"nvidia.com/gpu.shared": 2} and shared.gpu_memory_mib == 3000
    queue = found.queues["research"]
    assert (dict(queue.guarantee), dict(queue.limit), queue.weight) == ({"cpu": 4000, "gpu": 8000}, {"gpu": 16000}, 2)
    assert "spec.reclaimable" in left(migrated(text_of("volcano")))


def test_volcano_to_native() -> None:
    found = read("volcano", MigrationTarget.NATIVE)
    assert found.minimums["podgroup.scheduling.k8s.io/default/g"] == 2
    assert found.pods["p0"].gang == "podgroup.scheduling.k8s.io/default/g"


def test_a_volcano_job_of_one_task_restarts_as_a_whole() -> None:
    """Only a JobSet does that."""
    text = """\
    apiVersion: batch.volcano.sh/v1alpha1
    kind: Job
    metadata: {name: j}
    spec:
      maxRetry: 5
      policies: [{event: PodFailed, action: RestartJob}]
      tasks: [{name: w, replicas: 2, template: {spec: {containers: [], restartPolicy: Never}}}]
    """
    (jobset,) = values(migrated(text).text)
    assert jobset["kind"] == "JobSet" and jobset["spec"]["failurePolicy"] == {"maxRestarts": 5}
    assert jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] == 0


def test_what_volcano_jobs_lose() -> None:
    text = """\
    apiVersion: batch.volcano.sh/v1alpha1
    kind: Job
    metadata: {name: j}
    spec:
      minAvailable: 2
      plugins: {ssh: []}
      volumes: [{mountPath: /data, volumeClaimName: c}]
      policies: [{event: PodPending, action: AbortJob, timeout: 1h}]
      tasks:
      - {name: a, replicas: 2, dependsOn: {name: [b]}, template: {spec: {containers: [], restartPolicy: Never}}}
      - {name: b, replicas: 2, template: {spec: {containers: []}}}
    """
    assert set(left(migrated(text))) == {
        "spec.minAvailable", "spec.plugins.ssh", "spec.volumes", "spec.policies[0]", "spec.tasks[0].dependsOn",
        "spec.tasks[1].template.spec",
    }  # fmt: skip


@pytest.mark.parametrize("targets", [(), (MigrationTarget.NATIVE,)])
def test_coscheduling(targets: tuple[MigrationTarget, ...]) -> None:
    found = read("coscheduling", *targets)
    group = "podgroup.scheduling.k8s.io/default/pg" if targets else "podgroup.scheduling.x-k8s.io/default/pg"
    assert not found.problems and found.minimums == {group: 3}
    assert found.pods["w0"].managed and found.pods["w0"].gang == group
    queue = found.queues["q"]
    assert (dict(queue.guarantee), dict(queue.limit), queue.namespaces) == ({"cpu": 1000}, {"gpu": 4000}, ("team",))


def test_kueue() -> None:
    found = read("kueue")
    assert found.minimums == {"job.batch/default/train": 4, "gang.dovetail.dev/default/g": 2}
    assert {pod.queue for pod in found.pods.values()} == {"team-a"}
    assert all(pod.managed for pod in found.pods.values())
    queue = found.queues["team-a"]
    assert dict(queue.guarantee) == {"cpu": 9000, "gpu": 16000, "gpu/NVIDIA-H100-80GB-HBM3": 16000}
    assert (dict(queue.limit), queue.parent, queue.namespaces) == ({"gpu": 24000}, "all", None)
    assert "all" in found.queues
    gang = found.gangs["job.batch/default/train"]
    assert gang.required == ("cloud.provider.com/topology-block",)
    job = next(value for value in values(migrated(text_of("kueue")).text) if value["kind"] == "Job")
    assert "suspend" not in job["spec"] and job["spec"]["activeDeadlineSeconds"] == 3600


def test_a_cluster_queue_without_a_cohort_borrows_nothing() -> None:
    text = """\
    apiVersion: kueue.x-k8s.io/v1beta2
    kind: ClusterQueue
    metadata: {name: q}
    spec:
      resourceGroups: [{flavors: [{name: a, resources: [{name: nvidia.com/gpu, nominalQuota: 4}]},
                                  {name: b, resources: [{name: nvidia.com/gpu, nominalQuota: 2}]}]}]
    """
    queue = meant(migrated(text).text).queues["q"]
    assert dict(queue.guarantee) == dict(queue.limit) == {"gpu": 6000}
    # Without a selector Kueue admits nobody.
    assert queue.namespaces == ()


def test_hami() -> None:
    found = read("hami")
    part, whole = found.pods["part"].request, found.pods["whole"].request
    assert dict(part.resources) == {"nvidia.com/gpu.shared": 2} and part.gpu_milli == 250
    assert dict(whole.resources) == {"nvidia.com/gpu": 1} and not whole.gpu_milli
    reported = left(migrated(text_of("hami")))
    assert "spec.containers[0].resources.limits[nvidia.com/gpucores]" in reported
    assert "metadata.annotations[nvidia.com/use-gputype]" in reported
    assert (
        values(migrated(text_of("hami")).text)[2]["spec"]["containers"]
        == values(text_of("hami"))[2]["spec"]["containers"]
    )


def test_kai() -> None:
    classes = "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: train}\nvalue: 50\n"
    found = meant(migrated(text_of("kai") + classes).text)
    assert found.minimums == {"podgroup.scheduling.k8s.io/default/pg": 4}
    assert found.gangs["podgroup.scheduling.k8s.io/default/pg"].priority is None
    half, member = found.pods["frac"], found.pods["m0"]
    assert dict(half.request.resources) == {"nvidia.com/gpu.shared": 1} and half.request.gpu_milli == 500
    assert (half.queue, half.priority) == ("team", 50)
    assert member.request.gpu_memory_mib == 4096 and member.gang == "podgroup.scheduling.k8s.io/default/pg"
    queue = found.queues["team"]
    assert dict(queue.guarantee) == {"cpu": 4000, "gpu": 8000}
    assert dict(queue.limit) == {"gpu": 16000, "memory": 10**9}
    assert (queue.weight, queue.parent, queue.preempt_min_runtime_ms) == (2, "all", 3_600_000)
    pod = next(value for value in values(migrated(text_of("kai")).text) if value["metadata"]["name"] == "frac")
    assert pod["metadata"]["annotations"]["dovetail.dev/topology-required"] == "x.io/rack"


def test_annotations_without_a_prefix_are_kai_s_only_on_its_pods() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {gpu-fraction: '0.5'}}\nspec: {containers: []}\n"
    )
    assert migrated(text).text == text and not migrated(text).notes


def test_yunikorn() -> None:
    found = read("yunikorn")
    assert found.minimums == {"gang.dovetail.dev/default/app1": 3}
    assert {(pod.queue, pod.gang) for pod in found.pods.values()} == {("ml.team", "gang.dovetail.dev/default/app1")}


def test_claims() -> None:
    found = migrated(text_of("claims"), MigrationTarget.DRA)
    text = found.text.replace("  containers:", "  schedulerName: dovetail\n  containers:")
    pods = meant(text).pods
    assert len(pods["d"].device_claims) == 2 and dict(pods["d"].request.resources).keys() == {"cpu"}
    assert not pods["share"].device_claims and pods["share"].request.gpu_milli == 500
    assert left(found) == ["spec.containers[0].resources.limits[nvidia.com/gpu.shared]"]
    templates = [value for value in values(found.text) if value["kind"] == "ResourceClaimTemplate"]
    (request,) = templates[0]["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 2}


def test_one_template_for_all_pods_that_ask_for_the_same() -> None:
    pod = values(text_of("claims"))[0]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod, {**pod, "metadata": {"name": "e"}}]})
    (made,) = values(migrated(text, MigrationTarget.DRA).text)
    assert [item["kind"] for item in made["items"]] == ["Pod", "Pod", *["ResourceClaimTemplate"] * 2]


def test_an_anchor_that_others_share_is_left_to_the_user() -> None:
    text = """\
    apiVersion: v1
    kind: Pod
    metadata: {name: p}
    spec:
      containers:
      - {name: a, image: b, resources: {limits: &gpus {alpha.kubernetes.io/nvidia-gpu: 1}}}
      - {name: c, image: b, resources: {limits: *gpus}}
    """
    found = migrated(text)
    assert "by hand" in " ".join(one.message for one in found.notes if one.outcome is MigrationOutcome.LEFT)


def test_an_unrendered_template_is_reported_and_stays() -> None:
    text = "kind: Pod\nmetadata: {name: {{ .Values.name }}}\n"
    found = migrated(text)
    assert found.text == text and "helm template" in found.notes[0].message


def test_kubeflow_s_jobs() -> None:
    text = """\
    apiVersion: kubeflow.org/v1
    kind: PyTorchJob
    metadata: {name: pt, labels: {kueue.x-k8s.io/queue-name: q}}
    spec:
      runPolicy: {suspend: true, schedulingPolicy: {minAvailable: 2, queue: q}}
      pytorchReplicaSpecs: {Worker: {replicas: 2, template: {spec: {containers: []}}}}
    """
    found = migrated(text)
    (job,) = values(found.text)
    assert job["spec"]["runPolicy"] == {"schedulingPolicy": {"minAvailable": 2}}
    assert job["metadata"]["labels"] == {"dovetail.dev/queue": "q"} and not left(found)
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["schedulerName"] == "dovetail"


def test_a_label_goes_where_pods_get_it() -> None:
    text = """\
    apiVersion: ray.io/v1
    kind: RayJob
    metadata: {name: r, labels: {kai.scheduler/queue: team}}
    spec: {rayClusterSpec: {headGroupSpec: {template: {spec: {containers: []}}}}}
    """
    (job,) = values(migrated(text).text)
    template = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    assert template["metadata"]["labels"] == {"dovetail.dev/queue": "team"} and "labels" not in job["metadata"]
    train = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t, labels: {runai/queue: q}}\n"
    assert left(migrated(train)) == ["metadata.labels[runai/queue]"] and migrated(train).text == train


def test_pod_groups_of_1_36() -> None:
    head = "apiVersion: scheduling.k8s.io/v1alpha2\nkind: PodGroup\nmetadata: {name: g}\n"
    text = f"{head}spec: {{schedulingPolicy: {{basic: {{}}}}}}\n"
    assert values(migrated(text).text)[0]["apiVersion"] == "scheduling.k8s.io/v1beta1"
    more = text.replace("{schedulingPolicy", "{podGroupTemplateRef: {}, schedulingPolicy")
    assert migrated(more).text == more and left(migrated(more)) == ["apiVersion"]


@pytest.mark.parametrize(
    ("version", "kind", "spec"),
    [
        ("batch.volcano.sh/v1alpha1", "Job", "tasks: [{name: a, template: {spec: {containers: []}}}]"),
        ("scheduling.volcano.sh/v1beta1", "Queue", "weight: 1"),
        ("scheduling.volcano.sh/v1beta1", "PodGroup", "minMember: 1"),
        ("scheduling.x-k8s.io/v1alpha1", "PodGroup", "minMember: 1"),
        ("scheduling.x-k8s.io/v1alpha1", "ElasticQuota", "min: {cpu: 1}"),
        ("kueue.x-k8s.io/v1beta2", "ClusterQueue", "cohortName: a"),
        ("kueue.x-k8s.io/v1beta2", "Cohort", "parentName: a"),
        ("scheduling.run.ai/v2", "Queue", "parentQueue: a"),
        ("scheduling.run.ai/v2alpha2", "PodGroup", "minMember: 1"),
    ],
)
def test_an_unknown_field_is_reported_if_the_spec_is_rewritten(version: str, kind: str, spec: str) -> None:
    head = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\n"
    found = migrated(f"{head}spec:\n  {spec}\n  newer: 1\nstatus: {{state: Open}}\n", MigrationTarget.NATIVE)
    assert "spec.newer" in left(found)
    made, *_ = values(found.text)
    assert made["apiVersion"] != version and "status" not in made and "newer" not in made["spec"]


def test_yunikorn_queues_of_one_leaf_name_stay_two() -> None:
    def job(name: str, queue: str) -> str:
        pod = (
            f"{{metadata: {{labels: {{queue: {queue}}}}}, spec: {{schedulerName: yunikorn, containers: [], "
            "restartPolicy: Never}}"
        )
        return f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  template: {pod}\n"

    found = migrated(f"{job('a', 'root.production.team')}---\n{job('b', 'root.development.team')}")
    queues = {pod.name: pod.queue for pod in meant(found.text).pods.values()}
    assert queues == {"a-0": "production.team", "b-0": "development.team"}
    assert sum("by its whole path" in one.message for one in found.notes) == 2


ENDLESS = 2**31 - 1


@pytest.mark.parametrize(
    ("restart", "event", "task", "limit"),
    [
        ("Never", "", "", 0),  # a failed pod is not made again
        ("Never", "PodFailed", "maxRetry: 7", 0),  # the policy restarts the whole job
        ("OnFailure", "", "", ENDLESS),  # the kubelet restarts containers
        ("OnFailure", "", "maxRetry: 7", ENDLESS),
        ("OnFailure", "TaskFailed", "", 3),
        ("OnFailure", "TaskFailed", "maxRetry: 0", 3),
        ("OnFailure", "TaskFailed", "maxRetry: 7", 7),
        ("OnFailure", "*", "maxRetry: 7", 7),
        ("OnFailure", "TaskFailed", "maxRetry: -1", ENDLESS),
        ("Always", "PodEvicted", "", ENDLESS),
    ],
)
def test_retries_of_a_volcano_task(restart: str, event: str, task: str, limit: int) -> None:
    policies = f"policies: [{{event: '{event}', action: RestartJob}}]" if event else ""
    text = f"""\
    apiVersion: batch.volcano.sh/v1alpha1
    kind: Job
    metadata: {{name: j}}
    spec:
      maxRetry: 5
      {policies}
      tasks:
      - replicas: 2
        {task}
        template: {{spec: {{containers: [], restartPolicy: {restart}}}}}
    """
    found = migrated(text)
    (made,) = values(found.text)
    whole = made["kind"] == "JobSet"
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"] if whole else made["spec"]
    assert job["backoffLimit"] == limit
    assert whole == bool(event) and made["spec"].get("failurePolicy") == ({"maxRestarts": 5} if event else None)
    assert ("spec.maxRetry" in left(found)) == (not event)
    assert ("spec.tasks[0].maxRetry" in left(found)) == ("7" in task and limit != 7)


def test_enough_pods_of_a_volcano_job() -> None:
    text = """\
    apiVersion: batch.volcano.sh/v1alpha1
    kind: Job
    metadata: {name: j}
    spec:
      minSuccess: 2
      tasks: [{replicas: 3, template: {spec: {containers: [], restartPolicy: Never}}}]
    """
    (made,) = values(migrated(text).text)
    assert made["spec"]["successPolicy"] == {"rules": [{"succeededCount": 2}]}


def test_names_without_a_domain_are_reported_once_and_before_the_scheduler_is_another() -> None:
    text = """\
    apiVersion: v1
    kind: Pod
    metadata: {name: p, annotations: {gpu-fraction: half, mps: "true"}}
    spec: {schedulerName: kai-scheduler, containers: []}
    """
    assert sorted(left(migrated(text))) == ["metadata.annotations.gpu-fraction", "metadata.annotations.mps"]
