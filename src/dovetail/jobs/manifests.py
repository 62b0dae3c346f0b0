# SPDX-License-Identifier: Apache-2.0
"""The objects of a new job, made of a command, an image and a shape.

Rules
- One node: a Job. Several nodes: one pod for each, all of which start together: an indexed Job with a headless Service,
  a JobSet, or a PyTorchJob with a master and workers.
- A pod knows its place by NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT, and torchrun by the same as PET_...
  (torch/distributed/argparse_util.py), so that `torchrun train.py` needs no arguments.
- A pod that is evicted is made again and is no failure; a command that fails is not repeated.
- CPU and memory are requests and limits, so that a kubelet can give a pod CPUs close to its GPUs. Without memory,
  /dev/shm has a bound of its own.
- A ComputeDomain of NVIDIA's DRA driver is made with the job, and its pods claim a channel of it: NVLink between nodes
  needs one. It is deleted with the job.
- A run time is declared for the scheduler, and ends pods that run longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from dovetail.core.model import GPU
from dovetail.core.quantities import display
from dovetail.core.queues.types import CPU, MEMORY, MODEL_LABEL, QUEUE_LABEL
from dovetail.jobs.gpu_request import GpuRequest
from dovetail.kube.api.resources import JOBS, Resource
from dovetail.kube.gangs.owners import COMPLETION_INDEX
from dovetail.kube.manifests.templates import JOB_SETS, PYTORCH_JOBS
from dovetail.kube.translate.annotations import FRACTION, PREFIX

Document = dict[str, Any]
USER_LABEL = f"{PREFIX}user"
MAX_RUNTIME = f"{PREFIX}max-runtime"
PORT = 29500
"""The port of the master, as torchrun has it."""
_SHM = "8Gi"
_SERVICES = Resource("", "v1", "services", True, "Service")
COMPUTE_DOMAINS = Resource("resource.nvidia.com", "v1beta1", "computedomains", True, "ComputeDomain")
"""Source: api/nvidia.com/resource/v1beta1 of kubernetes-sigs/dra-driver-nvidia-gpu."""
_CHANNEL = "imex-channel"
_JOB_NAME = "batch.kubernetes.io/job-name"
_RDMA = "rdma/"
_TORCH = {"NNODES": "PET_NNODES", "NODE_RANK": "PET_NODE_RANK", "MASTER_ADDR": "PET_MASTER_ADDR"}
_TORCH |= {"MASTER_PORT": "PET_MASTER_PORT", "NPROC_PER_NODE": "PET_NPROC_PER_NODE"}
LONGEST_NAME = 52
"""The names of pods, which are their hosts' names too, have a suffix and at most 63 characters."""


class JobRequest(Struct, frozen=True):
    """A job to make. `products` are the GPU labels of the nodes that it may use, `hosts` their names (none: any).
    `runtime` is as a user writes it, and `runtime_s` in seconds (0: not limited). `cpu_milli` and `memory_bytes` are
    for each pod. `resources` are further amounts by name, `annotations` are those of its pods. `compute_domain`: its
    pods share memory by NVLink between nodes."""

    name: str
    namespace: str
    image: str
    command: tuple[str, ...] = ()
    gpus: GpuRequest = GpuRequest()
    nodes: int = 1
    products: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    queue: str = ""
    user: str = ""
    runtime: str = ""
    runtime_s: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    env: Mapping[str, str] = {}
    resources: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    priority_class: str = ""
    scheduler_name: str = "dovetail"
    compute_domain: bool = False


class NewKind(Struct, frozen=True):
    """A kind that a job can be made as: its resource, and what makes it."""

    resource: Resource
    make: Callable[[JobRequest], list[Document]]


def _metadata(request: JobRequest) -> Document:
    labels = {QUEUE_LABEL: request.queue, USER_LABEL: request.user}
    return {
        "name": request.name, "namespace": request.namespace,
        "labels": {key: value for key, value in labels.items() if value},
        "annotations": {MAX_RUNTIME: request.runtime} if request.runtime else {},
    }  # fmt: skip


def _template(request: JobRequest, env: list[Document], subdomain: str = "", container: str = "main") -> Document:
    """The pod template. `env` are the variables by which a pod knows its place."""
    own = _metadata(request)
    annotations = {**own["annotations"], **request.annotations}
    if request.gpus.milli:
        annotations[PREFIX + FRACTION] = f"{request.gpus.milli / 1000:g}"
    spec: Document = {
        "schedulerName": request.scheduler_name,
        "restartPolicy": "Never",
        "containers": [_container(request, env, container)],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _shm(request)}}],
    }
    if request.gpus.resource:
        # The taint that installers of NVIDIA's stack put on GPU nodes.
        spec["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    if terms := _node_terms(request):
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    if request.compute_domain:
        spec["resourceClaims"] = [{"name": _CHANNEL, "resourceClaimTemplateName": _channel_template(request)}]
    for field, value in (
        ("subdomain", subdomain),
        ("priorityClassName", request.priority_class),
        ("activeDeadlineSeconds", request.runtime_s),
    ):
        if value:
            spec[field] = value
    return {"metadata": {"labels": own["labels"], "annotations": annotations}, "spec": spec}


def _node_terms(request: JobRequest) -> list[Document]:
    """Terms of which a node has to meet one."""
    models = [{"key": MODEL_LABEL, "operator": "In", "values": list(request.products)}] if request.products else []
    own = {"matchExpressions": models}
    if not request.hosts:
        return [own] if models else []
    # A field is compared with one value.
    names = ([{"key": "metadata.name", "operator": "In", "values": [host]}] for host in request.hosts)
    return [{**(own if models else {}), "matchFields": name} for name in names]


def _container(request: JobRequest, env: list[Document], name: str) -> Document:
    amounts = dict(request.resources)
    if request.gpus.resource:
        amounts[request.gpus.resource] = str(request.gpus.count)
    if request.cpu_milli:
        amounts["cpu"] = display(CPU, request.cpu_milli)
    if request.memory_bytes:
        amounts["memory"] = display(MEMORY, request.memory_bytes)
    own = [{"name": key, "value": value} for key, value in request.env.items()]
    found: Document = {
        "name": name, "image": request.image,
        "env": [*(one for one in env if one["name"] not in request.env), *own],
        "resources": {"limits": amounts, "requests": dict(amounts)},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    if request.compute_domain:
        found["resources"]["claims"] = [{"name": _CHANNEL}]
    if request.command:
        found["command"] = list(request.command)
    if any(resource.startswith(_RDMA) for resource in amounts):
        # RDMA locks memory.
        found["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    return found


def _shm(request: JobRequest) -> str:
    """What is in memory there counts for the pod: with a limit of its memory at most half of that."""
    return display(MEMORY, request.memory_bytes // 2) if request.memory_bytes else _SHM


def _place(request: JobRequest, master: str) -> list[Document]:
    """The variables by which the pods of several nodes find each other."""
    rank = {"fieldRef": {"fieldPath": f"metadata.labels['{COMPLETION_INDEX}']"}}
    values: dict[str, Document] = {
        "NNODES": {"value": str(request.nodes)}, "NODE_RANK": {"valueFrom": rank},
        "MASTER_ADDR": {"value": master}, "MASTER_PORT": {"value": str(PORT)},
        "NPROC_PER_NODE": {"value": str(request.gpus.gpus)},
    }  # fmt: skip
    return [{"name": name} | value for own, value in values.items() for name in (own, _TORCH[own])]


def _alone(request: JobRequest) -> list[Document]:
    return [{"name": name, "value": str(request.gpus.gpus)} for name in ("NPROC_PER_NODE", _TORCH["NPROC_PER_NODE"])]


def _job_spec(request: JobRequest, template: Document) -> Document:
    return {
        "completionMode": "Indexed", "completions": request.nodes, "parallelism": request.nodes, "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
        "template": template,
    }  # fmt: skip


def _job(request: JobRequest) -> list[Document]:
    name = request.name
    several = request.nodes > 1
    env = _place(request, f"{name}-0.{name}") if several else _alone(request)
    spec = _job_spec(request, _template(request, env, name if several else ""))
    found = [_object(JOBS, request, spec)]
    if several:
        # Hosts have names where a headless Service selects them; they look for each other before they are ready.
        service = {
            "clusterIP": "None", "publishNotReadyAddresses": True, "selector": {_JOB_NAME: name},
            "ports": [{"name": "master", "port": PORT}],
        }  # fmt: skip
        found.append(_object(_SERVICES, request, service))
    return found


def _jobset(request: JobRequest) -> list[Document]:
    name = request.name
    template = _template(request, _place(request, f"{name}-node-0-0.{name}"))
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": _job_spec(request, template)}}],
    }
    return [_object(JOB_SETS.resource, request, spec)]


def _pytorch_job(request: JobRequest) -> list[Document]:
    # Its operator sets the variables of the place, those of torchrun as well, in the container of this name.
    def replicas(count: int) -> Document:
        return {"replicas": count, "restartPolicy": "Never", "template": _template(request, [], "", "pytorch")}

    specs = {"Master": replicas(1)} | ({"Worker": replicas(request.nodes - 1)} if request.nodes > 1 else {})
    spec = {
        "nprocPerNode": str(request.gpus.gpus), "runPolicy": {"backoffLimit": 0, "cleanPodPolicy": "None"},
        "pytorchReplicaSpecs": specs,
    }  # fmt: skip
    return [_object(PYTORCH_JOBS.resource, request, spec)]


def _channel_template(request: JobRequest) -> str:
    """The name of the ResourceClaimTemplate that the driver makes for the domain."""
    return f"{request.name}-{_CHANNEL}"


def _with_domain(make: Callable[[JobRequest], list[Document]]) -> Callable[[JobRequest], list[Document]]:
    """The objects with the ComputeDomain of the job, where it has one."""

    def made(request: JobRequest) -> list[Document]:
        if not request.compute_domain:
            return make(request)
        # The number of nodes is read by older drivers alone, which wait for so many.
        channel = {"resourceClaimTemplate": {"name": _channel_template(request)}}
        spec = {"numNodes": request.nodes, "channel": channel}
        return [*make(request), _object(COMPUTE_DOMAINS, request, spec)]

    return made


def _object(resource: Resource, request: JobRequest, spec: Document) -> Document:
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    found: Document = _without_empty(head | {"metadata": _metadata(request), "spec": spec})
    return found


def _without_empty(value: Any) -> Any:
    """The value without fields that are empty maps or lists."""
    if isinstance(value, dict):
        inner = {key: _without_empty(one) for key, one in value.items()}
        return {key: one for key, one in inner.items() if one not in ({}, [])}
    return [_without_empty(one) for one in value] if isinstance(value, list) else value


NEW_KINDS: dict[str, NewKind] = {
    "job": NewKind(JOBS, _with_domain(_job)),
    "jobset": NewKind(JOB_SETS.resource, _with_domain(_jobset)),
    "pytorchjob": NewKind(PYTORCH_JOBS.resource, _with_domain(_pytorch_job)),
}
"""By the value of `--kind`."""


def kind_for(nodes: int, served: Callable[[Resource], bool]) -> str:
    """The kind of a job of so many nodes on a cluster that serves these: a JobSet for several, where it is served."""
    return "jobset" if nodes > 1 and served(JOB_SETS.resource) else "job"
