# SPDX-License-Identifier: Apache-2.0
"""Pods of objects that have no pod template: their containers and settings are fields of the object's own.

Each pod is put together from these fields, which keep their places in the document. What a runtime outside of the
object adds (volumes, tolerations, a priority class) is unknown: such pods are partial.
Sources: github.com/kserve/kserve pkg/apis/serving/{v1beta1,v1alpha1}; github.com/kubeflow/trainer
pkg/apis/trainer/v1alpha1; github.com/argoproj/argo-workflows pkg/apis/workflow/v1alpha1/workflow_types.go;
github.com/tektoncd/pipeline pkg/apis/pipeline/v1/{container,taskrun,pipelinerun}_types.go; github.com/ai-dynamo/dynamo
deploy/operator/api/v1alpha1/{common,dynamocomponentdeployment_types}.go and v1beta1/dynamocomponentdeployment_types.go;
github.com/NVIDIA/k8s-nim-operator api/apps/v1alpha1/{common,nimservice,nimpipeline}_types.go;
github.com/sgl-project/rbg api/workloads/{v1alpha1,v1alpha2}/rolebasedgroup_types.go; github.com/volcano-sh/kthena
pkg/apis/workload/v1alpha1/{servinggroup,model_booster}_types.go; github.com/ai-dynamo/grove
operator/api/core/v1alpha1/{podcliqueset,podclique}.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.joined import Joined, list_of, mapping_of, mapping_with, patched
from dovetail.core.model import GPU

_KSERVE, _ARGO, _TEKTON = "serving.kserve.io", "argoproj.io", "tekton.dev"
_COMPONENTS = ("predictor", "transformer", "explainer")
_FRAMEWORKS = (
    "model", "huggingface", "triton", "pytorch", "tensorflow", "onnx", "sklearn", "xgboost", "lightgbm", "paddle",
    "pmml",
)  # fmt: skip
"""The fields of a predictor that are a container with more fields: those of a known server."""
_OF_A_POD = (
    "nodeSelector", "tolerations", "affinity", "schedulerName", "securityContext", "hostNetwork", "dnsPolicy",
    "priorityClassName", "initContainers", "volumes", "activeDeadlineSeconds", "runtimeClassName",
    "topologySpreadConstraints",
)  # fmt: skip
_NODES = "node"
"""The replicated job of a training runtime that trains."""
_GPU_SHORT, _GPU_TYPE = "gpu", "gpuType"
"""Dynamo's names of the number of GPUs in its resources, and of the resource that has them."""
_LEADER_AND_WORKER = (("leaderTemplatePatch", "patchLeaderTemplate"), ("workerTemplatePatch", "patchWorkerTemplate"))
"""The patches of a role's pods that work together, by their newer and older names."""
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


class ShapedPod(Struct, frozen=True):
    """A pod; `partial`: a runtime outside of the object adds to it. `peers`: how many pods, itself included, do one
    piece of work together; 0 where the shape does not show it."""

    field: Field
    partial: bool = False
    peers: int = 0


def _pod(place: Field, meta: Field, containers: Sequence[Field], more: Mapping[str, Field]) -> Joined:
    spec = mapping_of(
        {**{key: one for key, one in more.items() if one}, "containers": list_of(place, containers)}, place
    )
    return mapping_of({"metadata": meta, "spec": spec}, place)


def _kserve(whole: Field) -> Iterator[ShapedPod]:
    for name in _COMPONENTS:
        part = whole.at("spec", name)
        runtime = next((part.at(one) for one in _FRAMEWORKS if part.at(one)), None)
        if part:
            listed = [*part.at("containers").each(), *([runtime] if runtime else [])]
            yield ShapedPod(_pod(part, _metadata(part), listed, dict(part.entries())), runtime is not None)
        workers = part.at("workerSpec")
        if workers:
            listed = list(workers.at("containers").each())
            yield ShapedPod(_pod(workers, _metadata(part), listed, dict(workers.entries())), partial=True)


def _runtime(whole: Field) -> Iterator[ShapedPod]:
    for place in (whole.at("spec"), whole.at("spec", "workerSpec")):
        if place.at("containers"):
            yield ShapedPod(mapping_of({"metadata": _metadata(whole.at("spec")), "spec": place}, place))


def _llm_service(whole: Field) -> Iterator[ShapedPod]:
    """LLMInferenceService: its presets add to the pods."""
    for place in (whole.at("spec"), whole.at("spec", "prefill")):
        for name in ("template", "worker"):
            spec = place.at(name)
            if spec:
                yield ShapedPod(mapping_of({"metadata": _metadata(place), "spec": spec}, place), partial=True)


def _metadata(place: Field) -> Joined:
    return mapping_of({key: place.at(key) for key in ("labels", "annotations") if place.at(key)}, place)


def _train_job(whole: Field) -> Iterator[ShapedPod]:
    """The settings of its nodes are patches of the runtime, by three names in three releases."""
    spec = whole.at("spec")
    trainer = spec.at("trainer")
    if not trainer:
        return
    patches = [one for one in spec.at("podSpecOverrides").each() if _of_nodes(one)]
    patches += [one.at("spec") for one in spec.at("podTemplateOverrides").each() if _of_nodes(one)]
    patches += [
        job.at("template", "spec", "template", "spec")
        for patch in spec.at("runtimePatches").each()
        for job in patch.at("trainingRuntimeSpec", "template", "spec", "replicatedJobs").each()
        if job.at("name").text == _NODES
    ]
    container = mapping_with(trainer, resources=trainer.at("resourcesPerNode"))
    more = {key: one.at(key) for one in patches for key in _OF_A_POD if one.at(key)}
    yield ShapedPod(_pod(trainer, _metadata(spec), [container], more), partial=True)


def _of_nodes(patch: Field) -> bool:
    return any(job.at("name").text == _NODES for job in patch.at("targetJobs").each())


def _workflow(whole: Field) -> Iterator[ShapedPod]:
    spec = whole.at("spec", "workflowSpec") or whole.at("spec")
    usual = spec.at("templateDefaults")
    for template in spec.at("templates").each():
        listed = [one for key in ("container", "script") if (one := template.at(key))]
        listed += [*template.at("containerSet", "containers").each(), *template.at("sidecars").each()]
        if not listed:
            continue
        more = {key: template.at(key) or usual.at(key) or spec.at(key) for key in _OF_A_POD}
        more["priorityClassName"] = more["priorityClassName"] or spec.at("podPriorityClassName")
        volumes = [one for place in (spec, usual, template) for one in place.at("volumes").each()]
        more["volumes"] = list_of(template.at("volumes"), volumes)
        meta = template.at("metadata") or usual.at("metadata") or spec.at("podMetadata")
        partial = any(place.at("podSpecPatch") for place in (spec, usual, template))
        yield ShapedPod(_pod(template, meta or template.at("metadata"), listed, more), partial)


def _tekton(whole: Field) -> Iterator[ShapedPod]:
    spec = whole.at("spec")
    pipeline = spec.at("pipelineSpec") or spec
    tasks = [task.at("taskSpec") for key in ("tasks", "finally") for task in pipeline.at(key).each()]
    set_by_run = spec.at("podTemplate") or spec.at("taskRunTemplate", "podTemplate")
    runs = whole.at("kind").text in ("TaskRun", "PipelineRun")
    for task in (spec, spec.at("taskSpec"), *tasks):
        steps = [
            mapping_with(step, resources=step.at("computeResources") or step.at("resources"))
            for key in ("steps", "sidecars")
            for step in task.at(key).each()
        ]
        if steps:
            more = {key: set_by_run.at(key) for key in _OF_A_POD}
            more["volumes"] = list_of(
                task.at("volumes"), [*task.at("volumes").each(), *set_by_run.at("volumes").each()]
            )
            meta = whole.at("metadata") if runs else task.at("metadata")
            yield ShapedPod(_pod(task, meta, steps, more), partial=not runs)


def _dynamo(whole: Field) -> Iterator[ShapedPod]:
    """v1beta1 has a pod template for each component, of which the container `main` is Dynamo's; v1alpha1 has fields of
    its own, beside `extraPodSpec`."""
    spec = whole.at("spec")
    for component in (spec, *spec.at("components").each()):
        if component.at("podTemplate"):
            yield ShapedPod(component.at("podTemplate"), partial=True)
    if spec.at("components") or spec.at("podTemplate"):
        return
    services = [one for _, one in spec.at("services").entries()] or [spec]
    for service in services:
        more = service.at("extraPodSpec")
        asked = service.at("resources")
        sides = {side: _named_in_full(asked.at(side)) for side in ("limits", "requests") if asked.at(side)}
        main = more.at("mainContainer")
        own = main if main else service
        container = mapping_with(
            own,
            resources=mapping_of(sides, asked) if sides else main.at("resources"),
            env=main.at("env") or service.at("envs"),
            **{name: main.at(name) or service.at(name) for name in _PROBES},
        )
        containers = [container, *more.at("containers").each()]
        meta = service.at("extraPodMetadata")
        yield ShapedPod(_pod(more if more else service, meta, containers, dict(more.entries())), partial=True)


def _named_in_full(amounts: Field) -> Joined:
    gpu = amounts.at(_GPU_TYPE).text or GPU
    return mapping_of(
        {gpu if key == _GPU_SHORT else key: one for key, one in amounts.entries() if key != _GPU_TYPE}, amounts
    )


def _nim(whole: Field) -> Iterator[ShapedPod]:
    yield _nim_pod(whole.at("spec"))


def _nim_pipeline(whole: Field) -> Iterator[ShapedPod]:
    for service in whole.at("spec", "services").each():
        if service.at("enabled").value is not False:
            yield _nim_pod(service.at("spec"))


def _nim_pod(spec: Field) -> ShapedPod:
    """The image is a mapping, a probe is one field below, and the containers beside it are not Kubernetes' own."""
    own = {"image": Field(None, spec.at("image").path), **{name: spec.at(name, "probe") for name in _PROBES}}
    container = mapping_of({**dict(spec.entries()), **own}, spec)
    more = {key: spec.at(key) for key in _OF_A_POD if key != "initContainers"}
    return ShapedPod(_pod(spec, _metadata(spec), [container], more), partial=True)


def _role_group(whole: Field) -> Iterator[ShapedPod]:
    """RoleBasedGroup, of both versions, and the sets of such groups: a role has a template, or names one of
    `roleTemplates` and patches it."""
    spec = whole.at("spec")
    for group in (spec, spec.at("template"), spec.at("template", "spec"), spec.at("groupTemplate", "spec")):
        shared = {one.at("name").text: one.at("template") for one in group.at("roleTemplates").each()}
        for role in group.at("roles").each():
            yield from _role(role, shared)


def _role(role: Field, shared: Mapping[str, Field]) -> Iterator[ShapedPod]:
    place = role.at("standalonePattern") or role.at("leaderWorkerPattern") or role
    together = role.at("leaderWorkerPattern") or role.at("leaderWorkerSet")
    named = place.at("templateRef")
    base = place.at("template") or shared.get(named.at("name").text, Field(None))
    pod = patched(base, named.at("patch") or role.at("templatePatch"))
    sides = [together.at(new) or together.at(old) for new, old in _LEADER_AND_WORKER]
    for one in [patched(pod, side) for side in sides] if any(side.at("spec") for side in sides) else [pod]:
        if one:
            yield ShapedPod(one, partial=not base, peers=together.at("size").whole or 1)
    components = list((role.at("customComponentsPattern") or role).at("components").each())
    size = sum(one.at("size").whole or 1 for one in components)
    for component in components:
        if component.at("template"):
            yield ShapedPod(component.at("template"), peers=size)


def _model_serving(whole: Field) -> Iterator[ShapedPod]:
    """The scheduler of the object is that of its pods."""
    spec = whole.at("spec")
    for role in spec.at("template", "roles").each():
        peers = 1 + (role.at("workerReplicas").whole or 0)
        for pod in (role.at("entryTemplate"), role.at("workerTemplate")):
            if pod and peers > (pod.name == "workerTemplate"):
                named = pod.at("spec", "schedulerName") or spec.at("schedulerName")
                yield ShapedPod(mapping_with(pod, spec=mapping_with(pod.at("spec"), schedulerName=named)), peers=peers)


def _model_booster(whole: Field) -> Iterator[ShapedPod]:
    """The arguments of a worker are a mapping."""
    spec = whole.at("spec")
    for backend in (spec.at("backend"), *spec.at("backends").each()):
        for worker in backend.at("workers").each():
            config = worker.at("config")
            args = [Field(f"--{key}={one.value}", one.path) for key, one in config.entries()]
            container = mapping_with(worker, env=backend.at("env"), args=list_of(config, args))
            more = {key: worker.at(key) or backend.at(key) for key in _OF_A_POD}
            pod = _pod(worker, Field(None, (*worker.path, "metadata")), [container], more)
            yield ShapedPod(pod, partial=True, peers=worker.at("pods").whole or 1)


def _pod_cliques(whole: Field) -> Iterator[ShapedPod]:
    """Grove's: the cliques of a scaling group are one instance together."""
    spec = whole.at("spec")
    template = spec.at("template")
    cliques = {one.at("name").text: one for one in template.at("cliques").each()}
    groups = [
        [one.text for one in group.at("cliqueNames").each()] for group in template.at("podCliqueScalingGroups").each()
    ]
    sizes = {
        name: sum(cliques[one].at("spec", "replicas").whole or 1 for one in names if one in cliques)
        for names in groups
        for name in names
    }
    for clique in cliques.values():
        own = clique.at("spec", "podSpec")
        usual = template.at("priorityClassName")
        pod = mapping_with(own, priorityClassName=own.at("priorityClassName") or usual)
        if own:
            parts = {"metadata": _metadata(clique), "spec": pod}
            yield ShapedPod(mapping_of(parts, clique), peers=sizes.get(clique.at("name").text, 1))
    if spec.at("podSpec"):
        yield ShapedPod(mapping_of({"metadata": _metadata(whole.at("metadata")), "spec": spec.at("podSpec")}, spec))


_SHAPES: dict[tuple[str, str], Callable[[Field], Iterator[ShapedPod]]] = {
    (_KSERVE, "InferenceService"): _kserve,
    ("serving.kubeflow.org", "InferenceService"): _kserve,
    (_KSERVE, "ServingRuntime"): _runtime,
    (_KSERVE, "ClusterServingRuntime"): _runtime,
    (_KSERVE, "LLMInferenceService"): _llm_service,
    (_KSERVE, "LLMInferenceServiceConfig"): _llm_service,
    ("trainer.kubeflow.org", "TrainJob"): _train_job,
    ("nvidia.com", "DynamoGraphDeployment"): _dynamo,
    ("nvidia.com", "DynamoComponentDeployment"): _dynamo,
    ("apps.nvidia.com", "NIMService"): _nim,
    ("apps.nvidia.com", "NIMPipeline"): _nim_pipeline,
    **{("workloads.x-k8s.io", kind): _role_group for kind in ("RoleBasedGroup", "RoleBasedGroupSet")},
    ("workload.serving.volcano.sh", "ModelServing"): _model_serving,
    ("workload.serving.volcano.sh", "ModelBooster"): _model_booster,
    **{("grove.io", kind): _pod_cliques for kind in ("PodCliqueSet", "PodClique")},
    **{
        (_ARGO, kind): _workflow for kind in ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow")
    },
    **{(_TEKTON, kind): _tekton for kind in ("Task", "ClusterTask", "TaskRun", "Pipeline", "PipelineRun")},
}


def shape_of(kind: tuple[str, str]) -> Callable[[Field], Iterator[ShapedPod]] | None:
    """What puts the pods of an object of this (group, kind) together; None for kinds with pod templates."""
    return _SHAPES.get(kind)
