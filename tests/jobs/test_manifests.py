# SPDX-License-Identifier: Apache-2.0
"""The objects of a new job: the linter finds nothing in them, the scheduler reads what was asked for."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from dovetail.advice.lint.engine import lint
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.inventory import facts_of
from dovetail.advice.lint.rule import Facts
from dovetail.advice.lint.rules import RULES
from dovetail.advice.lint.source import documents
from dovetail.core.events import GangChanged, PodChanged
from dovetail.core.model import Gang, Pod
from dovetail.jobs.gpu_request import NodeOffer, gpu_request, offered, products_meant
from dovetail.jobs.manifests import NEW_KINDS, JobRequest, kind_for
from dovetail.kube.api.resources import JOBS, Resource
from dovetail.kube.manifests.cluster import of_documents
from dovetail.kube.manifests.documents import Document
from dovetail.kube.manifests.workloads import expanded

PRODUCT = "NVIDIA-H100-80GB-HBM3"
AMOUNTS = {
    "cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8", "nvidia.com/mig-3g.40gb": "4",
    "nvidia.com/gpu.shared": "32",
}  # fmt: skip
NODE = {
    "apiVersion": "v1", "kind": "Node",
    "metadata": {"name": "gpu-1", "labels": {"nvidia.com/gpu.product": PRODUCT, "nvidia.com/gpu.count": "8"}},
    "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
    "status": {"allocatable": AMOUNTS},
}  # fmt: skip
QUEUE = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "research"}, "spec": {}}
CLASS = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "batch"}, "value": 10}
KNOWN = facts_of([Field(NODE), Field(QUEUE)])
FULL: dict[str, Any] = {
    "queue": "research", "runtime": "4h", "runtime_s": 14_400, "cpu_milli": 64_000, "memory_bytes": 512 << 30,
    "env": {"NCCL_DEBUG": "INFO"}, "priority_class": "batch",
    "annotations": {"dovetail.dev/topology-preferred": "rack"},
}  # fmt: skip
GPUS = ("0", "1", "8", "8xH100", "1xmig-3g.40gb", "2xmig-3g.40gb", "0.5", "0.5xH100")


def request_of(gpus: str, nodes: int, **more: Any) -> JobRequest:
    offers = [NodeOffer(one.labels, one.allocatable) for one in KNOWN.nodes or ()]
    asked = offered(gpu_request(gpus), offers)
    return JobRequest(
        "train", "team-a", "registry.example/train:1.4", ("torchrun", "train.py"), asked, nodes,
        products_meant(asked, offers), user="ada", **more,
    )  # fmt: skip


def made(kind: str, request: JobRequest) -> list[dict[str, Any]]:
    return NEW_KINDS[kind].make(request)


def pods_of(objects: list[dict[str, Any]]) -> tuple[list[Pod], list[Gang]]:
    """What the scheduler reads once controllers have made the pods."""
    expansion = expanded(Document("made", one) for one in (*objects, CLASS))
    found = of_documents(expansion.documents, whole=False)
    assert not found.problems
    pods = {event.pod.uid: event.pod for event in found.events if isinstance(event, PodChanged)}
    gangs = {event.gang.id: event.gang for event in found.events if isinstance(event, GangChanged)}
    return list(pods.values()), list(gangs.values())


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "nodes", "kind"), list(itertools.product(GPUS, (1, 2, 16), NEW_KINDS)))
@pytest.mark.parametrize("more", [{}, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("facts", [Facts(), KNOWN], ids=["alone", "with nodes"])
def test_the_linter_finds_nothing(gpus: str, nodes: int, kind: str, more: dict[str, Any], facts: Facts) -> None:
    text = yaml.safe_dump_all(made(kind, request_of(gpus, nodes, **more)), sort_keys=False)
    found = list(documents("made", text))
    facts = replace(facts, objects=tuple(field for one in found for field in one.objects()) + facts.objects)
    assert [(one.rule, one.path, one.message) for one in lint(found, facts, RULES)] == []


@pytest.mark.parametrize("kind", NEW_KINDS)
@pytest.mark.parametrize("nodes", [1, 4])
def test_the_scheduler_reads_what_was_asked_for(kind: str, nodes: int) -> None:
    pods, gangs = pods_of(made(kind, request_of("8xH100", nodes, **FULL)))
    assert len(pods) == nodes
    for pod in pods:
        resources = dict(pod.request.resources)
        assert (resources["nvidia.com/gpu"], resources["cpu"], resources["memory"]) == (8, 64_000, 512 << 30)
        assert (pod.queue, pod.user, pod.work.max_runtime_ms) == ("research", "ada", 14_400_000)
        assert pod.managed and pod.problem is None
        assert pod.request.node_terms is not None and PRODUCT in str(pod.request.node_terms)
    assert sum(gang.min_count for gang in gangs) == (nodes if nodes > 1 or kind != "job" else 0)


def test_parts_of_gpus_are_read() -> None:
    (pod,), _ = pods_of(made("job", request_of("0.5", 1)))
    assert (dict(pod.request.resources)["nvidia.com/gpu.shared"], pod.request.gpu_milli) == (1, 500)
    (pod,), _ = pods_of(made("job", request_of("2xmig-3g.40gb", 1)))
    assert dict(pod.request.resources)["nvidia.com/mig-3g.40gb"] == 2


def env_of(template: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value") or one["valueFrom"] for one in template["spec"]["containers"][0]["env"]}


def test_the_pods_of_an_indexed_job_find_each_other_by_a_headless_service() -> None:
    job, service = made("job", request_of("8", 4))
    template = job["spec"]["template"]
    env = env_of(template)
    assert (env["NNODES"], env["MASTER_ADDR"], env["MASTER_PORT"], env["NPROC_PER_NODE"]) == (
        "4", "train-0.train", "29500", "8",
    )  # fmt: skip
    assert {env[f"PET_{name}"] for name in ("NNODES", "NPROC_PER_NODE")} == {"4", "8"}
    assert "job-completion-index" in env["NODE_RANK"]["fieldRef"]["fieldPath"]
    assert template["spec"]["subdomain"] == service["metadata"]["name"] == "train"
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": "train"}


def test_the_first_pod_of_a_jobset_is_the_master() -> None:
    (jobset,) = made("jobset", request_of("8", 4))
    replicated = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert env_of(replicated["template"])["MASTER_ADDR"] == "train-node-0-0.train"
    assert replicated["backoffLimit"] == 0 and replicated["podFailurePolicy"]["rules"][0]["action"] == "Ignore"


def test_a_pytorch_job_has_a_master_and_the_other_nodes_as_workers() -> None:
    (job,) = made("pytorchjob", request_of("8", 4))
    specs = job["spec"]["pytorchReplicaSpecs"]
    assert {role: one["replicas"] for role, one in specs.items()} == {"Master": 1, "Worker": 3}
    assert specs["Worker"]["template"]["spec"]["containers"][0]["name"] == "pytorch"
    (alone,) = made("pytorchjob", request_of("8", 1))
    assert set(alone["spec"]["pytorchReplicaSpecs"]) == {"Master"}


def test_a_variable_of_the_user_replaces_ours() -> None:
    job, _ = made("job", request_of("8", 2, env={"MASTER_PORT": "1234"}))
    names = [one["name"] for one in job["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert names.count("MASTER_PORT") == 1 and env_of(job["spec"]["template"])["MASTER_PORT"] == "1234"


def test_a_run_time_ends_pods_and_rdma_locks_memory() -> None:
    (job,) = made("job", request_of("8", 1, runtime="4h", runtime_s=14_400, resources={"rdma/hca": "1"}))
    spec = job["spec"]["template"]["spec"]
    assert spec["activeDeadlineSeconds"] == 14_400
    (container,) = spec["containers"]
    assert container["resources"]["limits"]["rdma/hca"] == "1"
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_the_shared_memory_is_bounded() -> None:
    def shm(**more: Any) -> str:
        (job,) = made("job", request_of("1", 1, **more))
        (volume,) = job["spec"]["template"]["spec"]["volumes"]
        return str(volume["emptyDir"]["sizeLimit"])

    assert (shm(), shm(memory_bytes=64 << 30)) == ("8Gi", "32Gi")


def test_a_jobset_is_made_where_it_is_served_and_there_are_several_nodes() -> None:
    def only_jobs(resource: Resource) -> bool:
        return resource == JOBS

    assert (kind_for(1, lambda _: True), kind_for(2, lambda _: True), kind_for(2, only_jobs)) == (
        "job",
        "jobset",
        "job",
    )


@pytest.mark.parametrize("kind", NEW_KINDS)
def test_a_job_with_nvlink_between_nodes_has_a_domain_whose_channel_its_pods_claim(kind: str) -> None:
    *objects, domain = made(kind, request_of("4", 4, compute_domain=True))
    assert (domain["apiVersion"], domain["kind"]) == ("resource.nvidia.com/v1beta1", "ComputeDomain")
    template = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    assert (domain["metadata"]["name"], template, domain["spec"]["numNodes"]) == ("train", "train-imex-channel", 4)
    text = yaml.safe_dump(objects)
    assert text.count(f"resourceClaimTemplateName: {template}") == (2 if kind == "pytorchjob" else 1)
    assert [one["kind"] for one in objects] == [one["kind"] for one in made(kind, request_of("4", 4))]
