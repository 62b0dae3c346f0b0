# SPDX-License-Identifier: Apache-2.0
"""Rules about the privileges of GPU pods on their node, the GPUs that they see, their user, and their owner.

DaemonSets are exempt: device plugins, drivers and exporters need access to the whole node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, count, env_of, gpus_of, templates_of
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.core.bounded_cache import remembered
from dovetail.core.model import GPU

_DEVICES = re.compile(r"/dev/?|/dev/(nvidia\S*|dri(/\S*)?)")
_INDEX = re.compile(r"[0-9]{1,9}")
_HIDDEN = ("", "-1", "none", "void", "nodevfiles")
OWNER_WORDS = {
    "owner", "owners", "ownedby", "team", "teams", "squad", "department", "dept", "division", "organization", "project",
    "user", "username", "userid", "creator", "createdby", "contact", "maintainer", "cost", "costs", "costcenter",
    "costcentre", "billing", "chargeback", "budget", "queue",
}  # fmt: skip
"""Words in keys of labels that state the owner of a pod."""


def _on_the_node(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    if not pod.uses_gpu or pod.group_kind == ("apps", "DaemonSet"):
        return
    paths = [volume.at("hostPath", "path") for volume in pod.spec.at("volumes").each()]
    fabric = any(path.text.startswith("/dev/infiniband") for path in paths)
    instead = (
        "an RDMA device plugin adds /dev/infiniband without it" if fabric else "add the one capability that it needs"
    )
    for container in computing(pod):
        privileged = container.at("securityContext", "privileged")
        if privileged.value is True:
            yield RuleMatch(privileged, f"the container is privileged: remove that; {instead}")
    host_pid = pod.spec.at("hostPID")
    if host_pid.value is True:
        yield RuleMatch(host_pid, "the pod sees all processes of the node: remove hostPID")
    for path in paths:
        if _DEVICES.fullmatch(path.text):
            message = f"{path.text} of the node is mounted: remove it, the device plugin adds the GPUs of the container"
            yield RuleMatch(path, message)


def _visible_devices(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    if not pod.uses_gpu or pod.group_kind == ("apps", "DaemonSet"):
        return
    for container in pod.all_containers:
        asked = any(gpus_of(container))
        for name, entry in env_of(container):
            value = entry.at("value")
            if "$(" in value.text:
                continue
            if name == "NVIDIA_VISIBLE_DEVICES" and value.text.strip() not in _HIDDEN:
                message = f"{name} is {value.text}: remove it, the device plugin sets it to the GPUs of the container"
                yield RuleMatch(value, message)
            elif name == "CUDA_VISIBLE_DEVICES" and asked and isinstance(value.value, str):
                yield from _cuda_devices(container, value)


def _cuda_devices(container: Field, value: Field) -> Iterator[RuleMatch]:
    """The problems of CUDA_VISIBLE_DEVICES. In a container the GPUs count from 0, independent of the node."""
    resource, amount = gpus_of(container)[0]
    gpus = count(amount)
    named = [one.strip() for one in value.text.split(",")]
    setting = f"CUDA_VISIBLE_DEVICES is {value.text or 'empty'}"
    if not gpus or gpus < 0:
        return
    if value.text.strip() in _HIDDEN:
        yield RuleMatch(value, f"{setting}, which hides the requested GPUs: remove it")
    elif any(not _INDEX.fullmatch(one) for one in named):
        if value.text.strip() == "all" or any(one.startswith(("GPU-", "MIG-")) for one in named):
            yield RuleMatch(value, f"{setting}: remove it, as the GPUs of the container are not known before it starts")
    elif resource == GPU and (too_high := next((one for one in named if int(one) >= gpus), "")):
        last = f"0 to {gpus - 1}" if gpus > 1 else "0"
        yield RuleMatch(value, f"{setting}, and the container has no GPU {too_high}: its GPUs are {last}: remove it")
    elif resource == GPU and len(set(named)) < gpus:
        yield RuleMatch(
            value, f"{setting}, and the container requests {gpus} GPUs: remove it, or request {len(set(named))}"
        )


def computing(pod: Template) -> tuple[Field, ...]:
    """The containers that request GPU resources; all containers if the pod uses an annotation or a claim."""
    return pod.gpu_containers or pod.containers


def _root(whole: Field, _: Facts) -> Iterator[RuleMatch]:
    for pod in templates_of(whole):
        if not pod.uses_gpu:
            continue
        usual = pod.spec.at("securityContext", "runAsUser")
        for container in computing(pod):
            user = container.at("securityContext", "runAsUser") or usual
            if user.whole != 0 or container.at("securityContext", "privileged").value is True:
                continue
            if whole.at("kind").text == "DaemonSet" or whole.at("metadata", "ownerReferences"):
                return
            if pod.spec.at("hostUsers").value is not False:
                yield RuleMatch(user, "the pod runs as root: set another user, such as runAsUser: 1000")
                return


def _without_owner(whole: Field, facts: Facts) -> Iterator[RuleMatch]:
    pods = [pod for pod in templates_of(whole) if pod.uses_gpu]
    if not pods or any(_names_an_owner(key) for key in _marks(whole.at("metadata"))):
        return
    if whole.at("kind").text == "DaemonSet" or whole.at("metadata", "ownerReferences"):
        return
    if whole.at("spec", "queue") or whole.at("spec", "runPolicy", "schedulingPolicy", "queue"):
        return
    namespace = whole.at("metadata", "namespace").text
    places = [pod.field for pod in pods]
    places += [one for one in facts.of_kind("Namespace") if namespace and one.at("metadata", "name").text == namespace]
    if not any(_names_an_owner(key) for place in places for key in _marks(place.at("metadata"))):
        message = "no label names the owner of the GPUs: add one, such as team: vision, or dovetail.dev/queue"
        yield RuleMatch(
            whole.at("metadata", "name") or whole.at("metadata", "generateName") or whole.at("kind"), message
        )


def _marks(meta: Field) -> Iterator[str]:
    """The keys of labels and annotations."""
    for side in ("labels", "annotations"):
        marks = meta.at(side).value
        yield from map(str, marks) if isinstance(marks, dict) else ()


@remembered(64)
def _names_an_owner(key: str) -> bool:
    """Whether the key contains one of the owner words in its name or prefix, as in `cost-center` or
    `kueue.x-k8s.io/queue-name`."""
    words = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "-", key).lower())
    return not OWNER_WORDS.isdisjoint(words)


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: train, labels: {{{0}}}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  {1}
  containers:
  - name: train
    image: registry.example.com/train:1.4
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
    {2}
"""
_TEAM, _USER = "team: vision", "securityContext: {runAsUser: 1000}"


def _pod(*parts: str) -> str:
    return "".join(line for line in _POD.format(*parts).splitlines(keepends=True) if line.strip())


RULES = (
    Rule(
        id="G24",
        level=Severity.WARNING,
        title="A GPU pod is privileged, or has processes or devices of the node",
        effect=(
            "The container sees all GPUs of the node, and may use those of other pods, which is not accounted. An "
            "attacker in the container controls the node."
        ),
        bad=_pod(_TEAM, _USER, "securityContext: {privileged: true}"),
        good=_pod(_TEAM, _USER, "securityContext: {capabilities: {add: [IPC_LOCK]}}"),
        template=_on_the_node,
        source="https://github.com/NVIDIA/k8s-device-plugin/issues/336, https://github.com/kubernetes/kubernetes/issues/81256",
    ),
    Rule(
        id="G25",
        level=Severity.WARNING,
        title="The pod sets its visible GPUs itself",
        effect=(
            "Variables of the pod override those of the device plugin. NVIDIA_VISIBLE_DEVICES adds GPUs of other pods; "
            "CUDA_VISIBLE_DEVICES hides GPUs: CUDA stops at the first missing device, and programs fail with "
            "`no CUDA-capable device is detected`."
        ),
        bad=_pod(_TEAM, _USER, "env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]"),
        good=_pod(_TEAM, _USER, "env: [{name: NVIDIA_DRIVER_CAPABILITIES, value: 'compute,utility'}]"),
        template=_visible_devices,
        source=(
            "https://github.com/kubernetes/kubernetes: pkg/kubelet/kubelet_pods.go, GenerateRunContainerOptions; "
            "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables"
        ),
    ),
    Rule(
        id="G43",
        level=Severity.INFO,
        title="A GPU pod runs as root",
        effect=(
            "Its files on shared storage belong to root, and a flaw in the container runtime gives an attacker in the "
            "container the node. Namespaces under the restricted Pod Security Standard refuse it: `runAsUser=0`."
        ),
        bad=_pod(_TEAM, "securityContext: {runAsUser: 0}", ""),
        good=_pod(_TEAM, _USER, ""),
        whole=_root,
        source="https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted",
    ),
    Rule(
        id="G44",
        level=Severity.INFO,
        title="No label names the owner of a GPU workload",
        effect="Reports of usage and cost have no owner for it, and there is no contact before it is stopped.",
        bad=_pod("app: train", _USER, ""),
        good=_pod(_TEAM, _USER, ""),
        whole=_without_owner,
    ),
)  # fmt: skip
