# SPDX-License-Identifier: Apache-2.0
"""Rules about the number of requested GPUs, and the names of GPU resources.

Names (G04): any device plugin may offer any name, so one is reported only if it nearly is a name of NVIDIA's device
plugin: the same letters, or nearly, with or without NVIDIA's domain, or something like a MIG profile. A name that a
node of the inventory allocates is never reported.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import lru_cache

from dovetail.advice.lint.edits import drop, put, rename
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, amount, amounts_of, count, gpu_amounts_of, is_gpu, same
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.core.devices.mig import names
from dovetail.core.devices.mig.geometry import resource_of
from dovetail.core.devices.mig.products import GEOMETRIES
from dovetail.core.model import GPU, SHARED_GPU

_RETIRED = "alpha.kubernetes.io/nvidia-gpu"
_SIDES = ("limits", "requests")
_MIG = frozenset(
    resource
    for geometry in GEOMETRIES
    for profile in geometry.profiles
    for resource in (profile.resource, *map(resource_of, profile.aliases))
)
_MIG_PART = re.compile(r"(?i)mig|\dg\.?\d")
_NUMBERS = re.compile(r"\d+")
_WHOLE = {"gpu", "gpus", "nvidia", "nvidiacom", "nvidiagpu", "nvidiagpus", "nvidiacomgpu", "nvidiacomgpus"}
_DOMAIN, _SHARED_SHORT = "nvidia.com", SHARED_GPU.removeprefix("nvidia.com/")
_OTHERS = frozenset({"nvidia.com/pgpu", "nvidia.com/vgpu"})
"""Resources of KubeVirt's and HAMi's plugins that are like NVIDIA's own."""
_SIMILARITY = 0.8


def _without_limit(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    for container in pod.all_containers:
        for side, name, asked in gpu_amounts_of(container):
            if side == "requests" and not (limit := container.at("resources", "limits", name)):
                message = f"{name} has a request and no limit: set the limit to the same amount"
                yield RuleMatch(asked, message, (put(limit, asked.value),))


def _unequal(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    for container in pod.all_containers:
        for side, name, limit in gpu_amounts_of(container):
            if side != "limits":
                continue
            request = container.at("resources", "requests", name)
            if request and not same(request, limit) and amount(request) != amount(limit):
                message = (
                    f"{name}: the request is {request.value} and the limit is {limit.value}: write {limit.value} for "
                    f"both, or {request.value} if that is what the pod needs"
                )
                yield RuleMatch(request, message, (put(request, limit.value),))


def _not_whole(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    for container in pod.all_containers:
        for side, name, asked in gpu_amounts_of(container):
            if (count(asked) or 0) > 0:
                continue
            value = amount(asked)
            if value is None or value.denominator != 1 or value < 0:
                less = value is not None and 0 < value < 1
                advice = (
                    "for a part of a GPU use a MIG profile, a shared resource, or the annotation "
                    "dovetail.dev/gpu-fraction" if less else "write a whole number"
                )  # fmt: skip
                yield RuleMatch(asked, f"{name}: {asked.value} is not a whole number of GPUs: {advice}")
            elif value == 0 and side == "limits":
                message = f"{name}: 0 requests no GPU: write how many, or remove the resource"
                yield RuleMatch(asked, message, guess=True)


def _unknown_name(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    for container in pod.all_containers:
        for side, name, asked in amounts_of(container):
            if not _is_misspelt(name) or any(name in node.allocatable for node in facts.nodes or ()):
                continue
            near, sure = nearest_name(name)
            message = f"no device plugin offers {name}: did you mean {near}?"
            free = sure and not container.at("resources", side, near)
            effect = f"The pod stays Pending: `Insufficient {name}` on every node."
            yield RuleMatch(asked, message, (rename(asked, near),) if free else (), effect=effect)


@lru_cache(maxsize=1024)
def _is_misspelt(name: str) -> bool:
    if is_gpu(name) or name == _RETIRED or name.lower() in _OTHERS:
        return False
    if names.is_like(name):
        return bool(names.fault(name))
    domain, _, short = name.rpartition("/")
    letters = re.sub(r"[^a-z]", "", name.lower())
    if letters in _WHOLE or letters.removesuffix("shared") in _WHOLE:
        return True
    if _is_similar(short.lower(), "gpu"):
        return _is_similar(domain.lower(), _DOMAIN)
    if domain == _DOMAIN:
        return _is_similar(short.lower(), _SHARED_SHORT)
    return _is_similar(domain.lower(), _DOMAIN) and is_gpu(f"{_DOMAIN}/{short}")


def _is_similar(one: str, other: str) -> bool:
    return difflib.SequenceMatcher(None, one, other).ratio() >= _SIMILARITY


def nearest_name(name: str) -> tuple[str, bool]:
    """(the resource that was probably meant, whether this is certain)."""
    if _MIG_PART.search(name):
        near = names.nearest(name, _MIG)
        # Only a complete profile is certain: several profiles begin with 1g.
        return near, _NUMBERS.findall(near) == _NUMBERS.findall(name)
    letters = re.sub(r"[^a-z]", "", name.lower())
    if letters in _WHOLE:
        return GPU, True
    shared = "shared" in letters or letters.endswith("replicas")
    return (SHARED_GPU if shared else GPU), letters.endswith("gpushared")


def _retired_name(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    for container in pod.all_containers:
        resources = container.at("resources")
        for side in _SIDES:
            old = resources.at(side, _RETIRED)
            if old:
                message = f"Kubernetes 1.11 removed {_RETIRED}: write {GPU}"
                yield RuleMatch(old, message, (drop(old) if resources.at(side, GPU) else rename(old, GPU),))


def _quota_key(whole: Field, _: Facts) -> Iterator[RuleMatch]:
    if whole.at("kind").text != "ResourceQuota":
        return
    hard = whole.at("spec", "hard")
    for name, asked in hard.entries():
        bare = name.removeprefix("limits.")
        if not is_gpu(bare):
            continue
        right = f"requests.{bare}"
        message = f"the quota of an extended resource counts only as {right}"
        yield RuleMatch(asked, message, (drop(asked) if hard.at(right) else rename(asked, right),))


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  containers:
  - name: train
    image: registry.example.com/train:1.4
    resources: {0}
"""

RULES = (
    Rule(
        id="G01",
        level=Severity.ERROR,
        title="GPUs are requested without a limit",
        effect=(
            "The API server refuses the pod: `spec.containers[0].resources.limits: Required value: Limit must be set "
            "for non overcommitable resources`."
        ),
        bad=_POD.format("{requests: {nvidia.com/gpu: 1}}"),
        good=_POD.format("{limits: {nvidia.com/gpu: 1}}"),
        template=_without_limit,
        fixable=True,
        source="https://github.com/kubernetes/kubernetes: pkg/apis/core/validation, ValidateResourceRequirements",
    ),
    Rule(
        id="G02",
        level=Severity.ERROR,
        title="Requested GPUs differ from their limit",
        effect=(
            "The API server refuses the pod: `spec.containers[0].resources.requests: Invalid value: \"2\": must be "
            "equal to nvidia.com/gpu limit of 1`."
        ),
        bad=_POD.format("{limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 2}}"),
        good=_POD.format("{limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 1}}"),
        template=_unequal,
        fixable=True,
        source="https://github.com/kubernetes/kubernetes: pkg/apis/core/validation, ValidateResourceRequirements",
    ),
    Rule(
        id="G03",
        level=Severity.ERROR,
        title="The number of GPUs is not a whole number, or is zero",
        effect=(
            "The API server refuses a fraction: `must be an integer`. With zero the pod starts without a GPU, and the "
            "program finds none."
        ),
        bad=_POD.format("{limits: {nvidia.com/gpu: 0.5}}"),
        good=_POD.format("{limits: {nvidia.com/gpu: '1'}}"),
        template=_not_whole,
    ),
    Rule(
        id="G04",
        level=Severity.ERROR,
        title="No device plugin offers a resource of this name",
        effect="The pod stays Pending: no node offers a resource of this name.",
        bad=_POD.format("{limits: {nvidia.com/gpus: 1}}"),
        good=_POD.format("{limits: {nvidia.com/mig-1g.10gb: 1}}"),
        template=_unknown_name,
        fixable=True,
        source="https://github.com/NVIDIA/k8s-device-plugin: README.md",
    ),
    Rule(
        id="G05",
        level=Severity.ERROR,
        title="The pod requests the GPU resource of Kubernetes before 1.11",
        effect="The pod stays Pending: no node offers `alpha.kubernetes.io/nvidia-gpu` any more.",
        bad=_POD.format("{limits: {alpha.kubernetes.io/nvidia-gpu: 1}}"),
        good=_POD.format("{limits: {nvidia.com/gpu: 1}}"),
        template=_retired_name,
        fixable=True,
        source="https://github.com/kubernetes/kubernetes/pull/61498",
    ),
    Rule(
        id="G15",
        level=Severity.ERROR,
        title="A quota of GPUs lacks `requests.`",
        effect=(
            "The quota limits nothing: for extended resources the API server counts only keys with `requests.`."
        ),
        bad="""\
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus, namespace: vision}
spec:
  hard:
    nvidia.com/gpu: 8
""",
        good="""\
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus, namespace: vision}
spec:
  hard:
    requests.nvidia.com/gpu: 8
""",
        whole=_quota_key,
        fixable=True,
        source="https://kubernetes.io/docs/concepts/policy/resource-quotas/#resource-quota-for-extended-resources",
    ),
)  # fmt: skip
