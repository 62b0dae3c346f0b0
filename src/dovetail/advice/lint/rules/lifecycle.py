# SPDX-License-Identifier: Apache-2.0
"""Rules about the start, the probes, the idle time and the end of GPU pods.

A manifest does not show the time to load a model or to save a checkpoint. A time is reported as too short if another
field of the manifest is longer, if it is too short for any such program, or for the weights of a known model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, count, env_of, gpus_of, templates_of, words_of
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.served import SERVER_COMMAND, SERVER_IMAGE, served
from dovetail.kube.translate.durations import duration_ms

TRAINING = {
    ("batch", "Job"), ("batch", "CronJob"), ("jobset.x-k8s.io", "JobSet"), ("batch.volcano.sh", "Job"),
    ("trainer.kubeflow.org", "TrainingRuntime"), ("trainer.kubeflow.org", "ClusterTrainingRuntime"),
    *(("kubeflow.org", f"{kind}Job") for kind in ("PyTorch", "MPI", "TF", "XGBoost", "Paddle", "JAX")),
}  # fmt: skip
_STEP_SECONDS = 600
"""PyTorch's timeout of NCCL collectives: a step, or the wait for a rank that saves, may take this long. Source:
torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp."""
_DEFAULT_PROBE_SECONDS = 30
"""The failure time of a liveness probe with default values."""
_LOADED_BYTES_S = 10**9
"""The rate at which a server loads weights, an assumption: network volumes and object stores are slower, local NVMe
drives faster; compilation and the capture of CUDA graphs come on top."""
_NOTEBOOK_COMMAND = re.compile(r"\bjupyter[ -](lab|notebook|server)\b|\bstart-notebook\.(sh|py)\b|\bcode-server\b")
_NOTEBOOK_IMAGE = re.compile(r"[^@]*\b(jupyter|jupyterlab)\b.*")
SLEEP_COMMAND = (
    r"^(\S*sh (-\w+ )*)?[\"']?(exec )?((/bin/)?sleep (inf|infinity|[0-9]{5,}|[0-9]+[hd])|tail -f /dev/null|"
    r"while (true|:|\[ 1 \]); do sleep [0-9]+[smhd]?; done);?[\"']?\s*$"
)
"""A pattern of whole commands that wait for hours or for good, in the common part of Python's and RE2's syntax."""
_SLEEPS = re.compile(SLEEP_COMMAND)
LAUNCHED = ("MPIJob",)
"""Kinds whose workers wait for commands of a launcher."""
_CONTROLLER = re.compile(r".*/notebook-controller")
_ENDS_WHEN_IDLE = re.compile(r"(shutdown_no_activity_timeout|cull_idle_timeout)[= ](?!0\b)")
_HUB_VARIABLES = ("JUPYTERHUB_API_TOKEN", "JUPYTERHUB_SERVICE_PREFIX")
_IDLE_WORDS = re.compile(r"idle|cull|inactiv", re.IGNORECASE)
_CONFIGURED = re.compile(r".*/(\.jupyter|etc/jupyter)(/.*)?")
_SLEEP = re.compile(r"\bsleep (\d{1,9})\b")
_DEFAULT_GRACE_SECONDS = 30


def _impatient(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    if not pod.uses_gpu:
        return
    starts_ms = _duration_ms(pod, "dovetail.dev/startup-time")
    for container in pod.gpu_containers or pod.containers:
        liveness, startup = container.at("livenessProbe"), container.at("startupProbe")
        if liveness and pod.group_kind in TRAINING and (gives := _silence_seconds(liveness)) < _STEP_SECONDS:
            message = (
                f"the probe ends a job that does not answer for {gives} s, as in a long step, a checkpoint or a "
                f"collective: remove it, or allow {_STEP_SECONDS} s with failureThreshold"
            )
            yield RuleMatch(liveness, message)
            continue
        probe = startup or liveness
        if not probe:
            continue
        allowed = _seconds(probe, "initialDelaySeconds", 0) + _silence_seconds(probe)
        if starts_ms and allowed * 1000 < starts_ms:
            message = f"dovetail.dev/startup-time is {starts_ms // 1000} s, and the probe fails after {allowed} s"
            yield RuleMatch(probe, f"{message}: add a startupProbe with enough time, or raise its failureThreshold")
        elif allowed <= _DEFAULT_PROBE_SECONDS and _serves(container, probe):
            message = f"the server has {allowed} s to load its model: add a startupProbe with a high failureThreshold"
            yield RuleMatch(probe, message)
        elif (model := served(pod, container)) and allowed * _LOADED_BYTES_S < model.weight_bytes:
            message = (
                f"the server has {allowed} s to load {model.name}: {model.weight_bytes // 10**9} GB in 16 bits take "
                f"{model.weight_bytes // _LOADED_BYTES_S} s at 1 GB/s: add a startupProbe with a high failureThreshold"
            )
            yield RuleMatch(probe, message)


def _serves(container: Field, probe: Field) -> bool:
    """Whether the container is a server of models that does not answer the probe before it has loaded its model. In an
    image of another name a command may be the probe that answers before."""
    named = SERVER_IMAGE.fullmatch(_image_name(container)) is not None
    return named or (not probe.at("exec") and SERVER_COMMAND.search(words_of(container)) is not None)


def _silence_seconds(probe: Field) -> int:
    """The time that a probe may fail before the kubelet acts."""
    return _seconds(probe, "periodSeconds", 10) * _seconds(probe, "failureThreshold", 3)


def _seconds(field: Field, name: str, default: int) -> int:
    """The value of a field in seconds. If it is unset or 0, the default of the API server."""
    return field.at(name).whole or default


def _image_name(container: Field) -> str:
    path, slash, last = container.at("image").text.partition("@")[0].rpartition("/")
    return path + slash + last.partition(":")[0]


def _duration_ms(pod: Template, name: str) -> int:
    """The duration in an annotation of the object, else of the template; 0 if it is missing or invalid."""
    for meta in (pod.whole.at("metadata"), pod.meta):
        value = meta.at("annotations", name).text
        if value:
            try:
                return duration_ms(value)
            except ValueError:
                return 0
    return 0


def _idle(whole: Field, facts: Facts) -> Iterator[RuleMatch]:
    if whole.at("metadata", "ownerReferences"):
        return
    for pod in templates_of(whole):
        if not pod.uses_gpu or _ends(pod):
            continue
        kubeflow = pod.group_kind == ("kubeflow.org", "Notebook")
        if kubeflow and not _never_culls(facts):
            continue
        for container in pod.gpu_containers or pod.containers:
            words = words_of(container)
            names = {name for name, _ in env_of(container)}
            runs = _NOTEBOOK_COMMAND.search(words) if words else _NOTEBOOK_IMAGE.fullmatch(container.at("image").text)
            if _SLEEPS.search(words) and not kubeflow and pod.group_kind[1] not in LAUNCHED:
                message = (
                    "the container only waits: run the work as its command, or, in a Pod or Job, end it with "
                    "activeDeadlineSeconds"
                )
                yield RuleMatch(container.at("command") or container.at("args"), message)
                break
            if not (kubeflow or runs) or not names.isdisjoint(_HUB_VARIABLES) or _ENDS_WHEN_IDLE.search(words):
                continue
            if any(_CONFIGURED.fullmatch(mount.at("mountPath").text) for mount in container.at("volumeMounts").each()):
                continue
            where = "set ENABLE_CULLING of the notebook controller, or add" if kubeflow else "add"
            message = (
                f"nothing ends the notebook when it is idle: {where} the argument "
                "--ServerApp.shutdown_no_activity_timeout=SECONDS"
            )
            yield RuleMatch(container, message)
            return


def _ends(pod: Template) -> bool:
    """Whether the pod or its object has a deadline or an idle annotation, or the pod is preemptible."""
    if pod.spec.at("activeDeadlineSeconds") or pod.whole.at("spec", "activeDeadlineSeconds"):
        return True
    metas = (pod.whole.at("metadata"), pod.meta)
    return any(
        _IDLE_WORDS.search(name) or (name == "dovetail.dev/preemptible" and value.text == "true")
        for meta in metas
        for name, value in meta.at("annotations").entries()
    )


@lru_cache(maxsize=1)
def _never_culls(facts: Facts) -> bool:
    """Whether there is a notebook controller, and none that culls idle notebooks or may be configured to do so
    elsewhere."""
    controllers = [
        (container, dict(env_of(container)).get("ENABLE_CULLING", Field(None)))
        for whole in facts.of_kind("Deployment")
        for pod in templates_of(whole)
        for container in pod.containers
        if _CONTROLLER.fullmatch(_image_name(container))
    ]
    return bool(controllers) and not any(
        culling.at("value").text == "true" or culling.at("valueFrom") or container.at("envFrom")
        for container, culling in controllers
    )


def _short_grace(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    if not pod.uses_gpu:
        return
    field = pod.spec.at("terminationGracePeriodSeconds")
    grace = _DEFAULT_GRACE_SECONDS if field.whole is None else field.whole
    for container in pod.containers:
        hook = container.at("lifecycle", "preStop")
        if (takes := _hook_seconds(hook)) >= grace and takes:
            message = (
                f"the preStop hook takes {takes} s, and terminationGracePeriodSeconds is {grace}: write "
                f"{takes} plus the time that the program needs after the hook"
            )
            yield RuleMatch(hook, message)
            return
    if not _duration_ms(pod, "dovetail.dev/checkpoint-interval"):
        return
    if field and grace < _DEFAULT_GRACE_SECONDS:
        message = (
            f"the pods save checkpoints, and have {grace} s for that when they are evicted: write how long it takes"
        )
        yield RuleMatch(field, message)
    elif not field:
        for container in pod.gpu_containers or pod.containers:
            hook = container.at("lifecycle", "preStop")
            if hook.at("exec") or hook.at("httpGet"):
                message = (
                    f"the preStop hook of a pod that saves checkpoints has the default of {_DEFAULT_GRACE_SECONDS} s: "
                    "write how long it takes as terminationGracePeriodSeconds"
                )
                yield RuleMatch(hook, message)
                return


def _hook_seconds(hook: Field) -> int:
    """The least time of a hook: the longest of its sleeps."""
    words = " ".join(word.text for word in hook.at("exec", "command").each())
    return max([hook.at("sleep", "seconds").whole or 0, *(int(found) for found in _SLEEP.findall(words))])


def _init_asks(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    for container in pod.init_containers:
        if container.at("restartPolicy").text == "Always":
            continue
        for name, amount in gpus_of(container):
            if not count(amount):
                continue
            if pod.gpu_containers:
                message = f"the init container requests {name}, as the containers do: do that work in a container"
            else:
                message = f"only the init container requests {name}, which stays allocated until the pod ends"
            yield RuleMatch(amount, message)


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {0}, labels: {{team: vision}}{1}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  {2}
  containers:
  - name: {0}
    image: {3}
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
    {4}
"""
_TRAIN, _SERVE = "registry.example.com/train:1.4", "vllm/vllm-openai:v0.11.0"
_LIVENESS = "livenessProbe: {httpGet: {path: /health, port: 8000}}"
_STARTUP = "startupProbe: {httpGet: {path: /health, port: 8000}, failureThreshold: 180}"
_INIT = "initContainers: [{{name: check, image: 'registry.example.com/check:2', resources: {{limits: {{{0}: 1}}}}}}]"
_SAVES = ", annotations: {dovetail.dev/checkpoint-interval: 30m}"
_HOOK = "lifecycle: {preStop: {exec: {command: [/opt/save]}}}"
_LAB = "command: [jupyter, lab{0}]"


def _pod(*parts: str) -> str:
    return "".join(line for line in _POD.format(*parts).splitlines(keepends=True) if line.strip())


RULES = (
    Rule(
        id="G36",
        level=Severity.WARNING,
        title="A probe ends a busy training pod, or a server that is still loading its model",
        effect=(
            "The kubelet restarts the container, or the job fails: `Container train failed liveness probe, will be "
            "restarted`. A server that loads longer is never ready; a gang loses its unsaved progress."
        ),
        bad=_pod("serve", "", "", _SERVE, _LIVENESS),
        good=_pod("serve", "", "", _SERVE, f"{_STARTUP}\n    {_LIVENESS}"),
        template=_impatient,
        source=(
            "https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/, "
            "https://llm-d.ai/docs/usage/readiness-probes"
        ),
    ),
    Rule(
        id="G40",
        level=Severity.WARNING,
        title="Nothing ends an idle notebook, or a pod that only waits, with GPUs",
        effect=(
            "It keeps its GPUs over nights and weekends: Jupyter and Kubeflow stop idle notebooks only if they are "
            "configured to, and a pod whose command is `sleep` works only while somebody is in it."
        ),
        bad=_pod("notebook", "", "", "quay.io/jupyter/pytorch-notebook:cuda12-2025-10-20", _LAB.format("")),
        good=_pod(
            "notebook", "", "", "quay.io/jupyter/pytorch-notebook:cuda12-2025-10-20",
            _LAB.format(", --ServerApp.shutdown_no_activity_timeout=7200"),
        ),
        whole=_idle,
        source=(
            "https://jupyter-server.readthedocs.io: ServerApp.shutdown_no_activity_timeout; "
            "https://github.com/kubeflow/notebooks: ENABLE_CULLING of the notebook controller"
        ),
    ),
    Rule(
        id="G41",
        level=Severity.INFO,
        title="The grace period is shorter than the work of the pod at its end",
        effect=(
            "After it the kubelet kills the containers and their preStop hooks (`FailedPreStopHook`, exit code 137): "
            "the progress since the last checkpoint is lost."
        ),
        bad=_pod("train", _SAVES, "", _TRAIN, _HOOK),
        good=_pod("train", _SAVES, "terminationGracePeriodSeconds: 300", _TRAIN, _HOOK),
        template=_short_grace,
        source="https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination",
    ),
    Rule(
        id="G42",
        level=Severity.INFO,
        title="An init container requests GPUs",
        effect=(
            "After a restart the kubelet may refuse the running pod: `UnexpectedAdmissionError`. Devices of init "
            "containers stay allocated until the pod ends."
        ),
        bad=_pod("train", "", _INIT.format("nvidia.com/gpu"), _TRAIN, ""),
        good=_pod("train", "", _INIT.format("cpu"), _TRAIN, ""),
        template=_init_asks,
        source="https://github.com/kubernetes/kubernetes/issues/124345 and 138446",
    ),
)  # fmt: skip
