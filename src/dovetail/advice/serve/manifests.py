# SPDX-License-Identifier: Apache-2.0
"""The objects that run a plan: Deployments, or LeaderWorkerSets for instances on several nodes, and what requests are
sent to. With TensorRT-LLM's prefill apart StatefulSets, and its orchestrator.

Rules
- The linter finds nothing in them, and an instance on several nodes is a gang.
- Weights are read from a PersistentVolumeClaim `model-weights`, in which Hugging Face's cache is; nothing is loaded
  from outside.
- llm-d's objects: pods have `llm-d.ai/role`, an InferencePool selects them, and pods that decode have llm-d's routing
  proxy before the engine. Its endpoint picker and gateway are installed by llm-d's own charts.
- An update replaces one instance after another, and never needs more GPUs than the plan.

Sources: InferencePool v1 of the Gateway API Inference Extension; llm-d's guide to prefill and decode apart;
LeaderWorkerSet v1; TensorRT-LLM's documentation of disaggregated serving.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from dovetail.advice.gpus import named
from dovetail.advice.layout import PlanError
from dovetail.advice.serve import commands
from dovetail.advice.serve.engines import BY_NAME, Engine
from dovetail.advice.serve.types import ALL, DECODE, PREFILL, RolePlan, ServingOption, WantedServing

Manifest = dict[str, Any]
CLAIM = "model-weights"
_CPUS_PER_GPU, _MOST_NAME = 8, 40
_GIB = 1 << 30
_PART_OF = "app.kubernetes.io/part-of"
_PROXY = "ghcr.io/llm-d/llm-d-routing-sidecar:v0.4.0"
_GRACE_S = 120
_USER = 1000
_SUFFIX = {ALL: "", PREFILL: "-prefill", DECODE: "-decode"}
_ROLE_LABEL = {ALL: "prefill-decode", PREFILL: "prefill", DECODE: "decode"}


class ModelToServe(Struct, frozen=True):
    """What the objects serve: its name there, the model on Hugging Face or a path, the format of its checkpoint, the
    bytes of its weights, the team that owns it, the priority class and the scheduler of the pods."""

    name: str
    source: str
    stored: str
    loaded_bytes: int
    team: str = "serving"
    priority_class: str = "serving"
    scheduler: str = "dovetail"


def objects(option: ServingOption, wanted: WantedServing, model: ModelToServe) -> list[Manifest]:
    """The objects of a plan. Raises PlanError for a plan that no objects are known for."""
    engine = BY_NAME[option.engine]
    if commands.needs_checkpoint(engine, model.stored, wanted.weights):
        raise PlanError(
            f"{model.source} is in {model.stored}, and {engine.title} needs a checkpoint in {wanted.weights}: "
            "name it by --checkpoint"
        )
    if engine.name == "tensorrt-llm" and any(role.nodes_each > 1 for role in option.roles):
        raise PlanError("objects for TensorRT-LLM on several nodes are not written: it starts them by MPI")
    name = _name(model.name)
    found: list[Manifest] = []
    for role in option.roles:
        found += _role(engine, option, wanted, model, role, name)
    apart = len(option.roles) > 1
    if apart and engine.name == "tensorrt-llm":
        found += _orchestrator(engine, option, model, name)
    # Only the orchestrator answers where TensorRT-LLM's prefill is apart.
    part = {"app.kubernetes.io/name": f"{name}-orchestrator"} if apart else {_PART_OF: name}
    found.append(_pool(name) if engine.name == "llm-d" else _service(name, part))
    return found


def _name(model: str) -> str:
    short = re.sub(r"[^a-z0-9]+", "-", model.rpartition("/")[2].lower().removesuffix(".json"))
    # The name of a Service begins with a letter.
    letter = "" if short.strip("-")[:1].isalpha() else "model-"
    return f"{letter}{short.strip('-')}"[:_MOST_NAME].strip("-")


def _labels(engine: Engine, name: str, model: ModelToServe, role: RolePlan) -> dict[str, str]:
    own = f"{name}{_SUFFIX[role.role]}"
    labels = {"app.kubernetes.io/name": own, _PART_OF: name, "team": model.team}
    return labels | ({"llm-d.ai/role": _ROLE_LABEL[role.role]} if engine.name == "llm-d" else {})


def _role(
    engine: Engine, option: ServingOption, wanted: WantedServing, model: ModelToServe, role: RolePlan, name: str
) -> Iterator[Manifest]:
    labels = _labels(engine, name, model, role)
    own = labels["app.kubernetes.io/name"]
    meta = {"name": own, "labels": labels}
    extra = commands.trtllm_options(wanted, role) if engine.name == "tensorrt-llm" else {}
    if extra:
        lines = "".join(_yaml_lines(extra, 0))
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"options.yaml": lines}}
    pod = _pod(engine, option, wanted, model, role, own if extra else "")
    if role.nodes_each > 1:
        worker = _pod(engine, option, wanted, model, role, "", worker=True)
        template = {
            "size": role.nodes_each,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": {"metadata": {"labels": labels}, "spec": pod},
            # Only the first pod of an instance answers: requests go by this label.
            "workerTemplate": {
                "metadata": {"labels": {key: value for key, value in labels.items() if key != _PART_OF}},
                "spec": worker,
            },
        }
        spec: Manifest = {
            "replicas": role.replicas, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template,
            "rolloutStrategy": {
                "type": "RollingUpdate", "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
            },
        }  # fmt: skip
        yield {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": meta, "spec": spec}
        return
    own_pods = {"app.kubernetes.io/name": own}
    set_of_pods: Manifest = {
        "replicas": role.replicas,
        "selector": {"matchLabels": own_pods},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    if engine.name == "tensorrt-llm" and role.role != ALL:
        # The orchestrator has a list of its servers, so that they need names that stay.
        yield _service(own, own_pods, headless=True)
        spec = {**set_of_pods, "serviceName": own, "podManagementPolicy": "Parallel"}
        yield {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec}
    else:
        yield _deployment(meta, set_of_pods, option.start_s)


def _deployment(meta: Manifest, set_of_pods: Manifest, start_s: int) -> Manifest:
    spec = {
        **set_of_pods,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "progressDeadlineSeconds": max(600, 4 * start_s),
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def _orchestrator(engine: Engine, option: ServingOption, model: ModelToServe, name: str) -> Iterator[Manifest]:
    """TensorRT-LLM's own router between prefill and decode, which needs no GPU."""
    own = f"{name}-orchestrator"
    labels = {"app.kubernetes.io/name": own, _PART_OF: name, "team": model.team}
    meta = {"name": own, "labels": labels}
    servers = {PREFILL: "context_servers", DECODE: "generation_servers"}
    lines = [f"hostname: 0.0.0.0\nport: {commands.PORT}\n"]
    for role in option.roles:
        pods = f"{name}{_SUFFIX[role.role]}"
        urls = [f"{pods}-{n}.{pods}:{commands.PORT}" for n in range(role.replicas)]
        lines.append(f"{servers[role.role]}:\n  num_instances: {role.replicas}\n  urls:\n")
        lines += (f"  - {url}\n" for url in urls)
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"servers.yaml": "".join(lines)}}
    health = {"httpGet": {"path": "/health", "port": commands.PORT}}
    container: Manifest = {
        "name": "orchestrator",
        "image": engine.image,
        "command": ["trtllm-serve", "disaggregated", "-c", "/etc/engine/servers.yaml"],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "ports": [{"name": "http", "containerPort": commands.PORT}],
        "resources": {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"memory": "8Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "startupProbe": {**health, "periodSeconds": 10, "failureThreshold": max(60, option.start_s // 2)},
        "readinessProbe": {**health, "periodSeconds": 5},
        "volumeMounts": [{"name": "servers", "mountPath": "/etc/engine", "readOnly": True}],
    }
    pod = {
        "priorityClassName": model.priority_class,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsUser": _USER, "runAsGroup": _USER, "runAsNonRoot": True},
        "containers": [container],
        "volumes": [{"name": "servers", "configMap": {"name": own}}],
    }
    set_of_pods = {
        "replicas": 1, "selector": {"matchLabels": {"app.kubernetes.io/name": own}},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }  # fmt: skip
    yield _deployment(meta, set_of_pods, option.start_s)


def _pod(
    engine: Engine,
    option: ServingOption,
    wanted: WantedServing,
    model: ModelToServe,
    role: RolePlan,
    config: str,
    worker: bool = False,
) -> Manifest:
    gpu = named(option.gpu)
    assert gpu is not None
    gpus = role.gpus_each // role.nodes_each
    behind = role.role == DECODE and engine.name == "llm-d"
    port = commands.BEHIND_PORT if behind else commands.PORT
    command = commands.served(engine, model.source, model.stored, wanted, role, port)
    if role.nodes_each > 1:
        command = commands.worker() if worker else commands.leader(command)
    shared = max(2, 2 * gpus) * _GIB if gpus > 1 else _GIB
    # A rank keeps a part of the weights in host memory while it loads them, and the page cache is not limited.
    host = shared + gpus * 16 * _GIB + model.loaded_bytes // max(1, role.gpus_each) * 2
    volumes: list[Manifest] = [
        {"name": "weights", "persistentVolumeClaim": {"claimName": CLAIM, "readOnly": True}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shared // _GIB}Gi"}},
        {"name": "cache", "emptyDir": {"sizeLimit": "20Gi"}},
    ]
    mounts: list[Manifest] = [
        {"name": "weights", "mountPath": "/weights", "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "cache", "mountPath": "/cache"},
    ]
    if config:
        volumes.append({"name": "options", "configMap": {"name": config}})
        mounts.append({"name": "options", "mountPath": "/etc/engine", "readOnly": True})
    container: Manifest = {
        "name": "engine",
        "image": engine.image,
        "command": command,
        "env": [
            {"name": "HF_HOME", "value": "/weights"}, {"name": "HF_HUB_OFFLINE", "value": "1"},
            {"name": "HOME", "value": "/cache"}, {"name": "VLLM_CACHE_ROOT", "value": "/cache/vllm"},
        ],
        "resources": {
            "requests": {"cpu": str(_CPUS_PER_GPU * gpus), "memory": f"{-(-host // _GIB)}Gi"},
            "limits": {"memory": f"{-(-host // _GIB)}Gi", "nvidia.com/gpu": str(gpus)},
        },
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": mounts,
    }  # fmt: skip
    if role.role != ALL and engine.name == "llm-d":
        container["env"] += [
            {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(commands.TRANSFER_PORT)},
        ]
    if role.nodes_each > 1:
        container["securityContext"]["capabilities"] = {"add": ["IPC_LOCK"]}
        container["resources"]["limits"]["rdma/ib"] = "1"
        container["resources"]["requests"]["rdma/ib"] = "1"
    if not worker:
        container["ports"] = [{"name": "engine" if behind else "http", "containerPort": port}]
        health = {"httpGet": {"path": "/health", "port": port}}
        container["startupProbe"] = {**health, "periodSeconds": 10, "failureThreshold": max(60, option.start_s // 2)}
        container["readinessProbe"] = {**health, "periodSeconds": 5}
        container["livenessProbe"] = {**health, "periodSeconds": 10, "failureThreshold": 6}
    spec: Manifest = {
        "schedulerName": model.scheduler,
        "priorityClassName": model.priority_class,
        "terminationGracePeriodSeconds": _GRACE_S,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER, "runAsNonRoot": True},
        "nodeSelector": {"nvidia.com/gpu.product": gpu.name},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": volumes,
    }
    if behind and not worker:
        spec["initContainers"] = [_proxy()]
    return spec


def _proxy() -> Manifest:
    """llm-d's routing proxy: it sends a prompt to an instance that prefills, then to the engine beside it."""
    return {
        "name": "routing-proxy",
        "image": _PROXY,
        "restartPolicy": "Always",
        "args": [f"--port={commands.PORT}", f"--vllm-port={commands.BEHIND_PORT}", "--connector=nixlv2"],
        "ports": [{"name": "http", "containerPort": commands.PORT}],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False},
    }


def _pool(name: str) -> Manifest:
    """What llm-d's router sends requests to."""
    picker = {"group": "", "kind": "Service", "name": f"{name}-epp", "port": {"number": 9002}}
    spec = {
        "selector": {"matchLabels": {_PART_OF: name}},
        "targetPorts": [{"number": commands.PORT}],
        "endpointPickerRef": {**picker, "failureMode": "FailOpen"},
    }
    api_version = "inference.networking.k8s.io/v1"
    return {"apiVersion": api_version, "kind": "InferencePool", "metadata": {"name": name}, "spec": spec}


def _service(name: str, selector: dict[str, str], headless: bool = False) -> Manifest:
    """What clients send requests to; `headless`: the names of the pods of a StatefulSet."""
    port = commands.PORT if headless else 80
    spec: Manifest = {"selector": selector, "ports": [{"name": "http", "port": port, "targetPort": commands.PORT}]}
    if headless:
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def _yaml_lines(value: dict[str, Any], depth: int) -> Iterator[str]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield f"{'  ' * depth}{key}:\n"
            yield from _yaml_lines(inner, depth + 1)
        else:
            yield f"{'  ' * depth}{key}: {str(inner).lower() if isinstance(inner, bool) else inner}\n"
