# SPDX-License-Identifier: Apache-2.0
"""Rules about how many GPUs are asked for, and under which name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from fractions import Fraction

from dovetail.advice.lint.edits import drop, put, rename
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import GPU, Template, is_gpu
from dovetail.advice.lint.rule import Facts, Found, Level, Rule
from dovetail.core.quantities import QuantityError, parse

_RETIRED = "alpha.kubernetes.io/nvidia-gpu"
_SIDES = ("limits", "requests")
_MIG_PROFILES = (
    "1g.5gb", "1g.5gb.me", "1g.6gb", "1g.6gb.me", "1g.10gb", "1g.10gb.me", "1g.12gb", "1g.12gb.me", "1g.18gb",
    "1g.18gb.me", "1g.20gb", "1g.23gb", "1g.23gb.me", "1g.24gb", "1g.24gb.me", "1g.35gb", "1g.45gb", "1g.47gb",
    "2g.10gb", "2g.12gb", "2g.20gb", "2g.24gb", "2g.35gb", "2g.45gb", "2g.47gb", "2g.48gb", "3g.20gb", "3g.40gb",
    "3g.47gb", "3g.48gb", "3g.71gb", "3g.90gb", "3g.93gb", "3g.95gb", "4g.20gb", "4g.24gb", "4g.40gb", "4g.47gb",
    "4g.48gb", "4g.71gb", "4g.90gb", "4g.93gb", "4g.95gb", "4g.96gb", "7g.40gb", "7g.80gb", "7g.94gb", "7g.95gb",
    "7g.96gb", "7g.141gb", "7g.180gb", "7g.186gb", "7g.189gb",
)  # fmt: skip
_NAMES = (GPU, f"{GPU}.shared", *(f"nvidia.com/mig-{profile}" for profile in _MIG_PROFILES))
_ALIKE = re.compile(r"(?i).*(nvidia|gpu|\bmig-|cuda).*")
_WHOLE = {"gpu", "gpus", "nvidia", "nvidiacom", "nvidiagpu", "nvidiagpus", "nvidiacomgpu", "nvidiacomgpus"}
_OTHERS = re.compile(
    r"(nvidia\.com/(pgpu|vgpu|gpu-?mem\w*|gpu-?cores?\w*|gpumem-percentage|priority|hostdev\w*|.*rdma.*|.*vf.*|sriov.*|"
    r"ib.*|infiniband.*|mofed.*|cc-.*|GA\w+|GH\w+|TU\w+|AD\w+|GB\w+|[A-Z0-9_]+)|amd\.com/.*|gpu\.intel\.com/.*|"
    r"(aliyun\.com|volcano\.sh|tencent\.com|kai\.scheduler|run\.ai|iluvatar\.ai|metax-tech\.com|mthreads\.com|"
    r"hami\.io|cambricon\.com|requests?|limits?|elasticgpu\.io|nos\.nebuly\.com|deviceclass\.resource\.kubernetes\.io)"
    r"[./].*)"
)
"""Resources that other plugins offer under a name with GPU or NVIDIA in it."""


def _without_limit(pod: Template, _: Facts) -> Iterator[Found]:
    for container in pod.all_containers:
        resources = container.at("resources")
        for name, amount in resources.at("requests").entries():
            limit = resources.at("limits", name)
            if is_gpu(name) and not limit:
                message = f"{name} has a request and no limit: write the same amount as a limit"
                yield Found(amount, message, (put(limit, amount.value),))


def _unequal(pod: Template, _: Facts) -> Iterator[Found]:
    for container in pod.all_containers:
        resources = container.at("resources")
        for name, limit in resources.at("limits").entries():
            request = resources.at("requests", name)
            if is_gpu(name) and request and _amount(request) != _amount(limit):
                message = f"{name}: a request of {request.value} and a limit of {limit.value}: leave the request out"
                yield Found(request, message, (put(request, limit.value),))


def _not_whole(pod: Template, _: Facts) -> Iterator[Found]:
    for container in pod.all_containers:
        for side in _SIDES:
            for name, amount in container.at("resources", side).entries():
                if not is_gpu(name):
                    continue
                value = _amount(amount)
                if value is None or value.denominator != 1 or value < 0:
                    less = value is not None and 0 < value < 1
                    advice = (
                        "for a part of a GPU use a MIG profile, a shared resource, or the annotation "
                        "dovetail.dev/gpu-fraction" if less else "write a whole number"
                    )  # fmt: skip
                    yield Found(amount, f"{name}: {amount.value} is no whole number of GPUs: {advice}")
                elif value == 0 and side == "limits":
                    yield Found(amount, f"{name}: 0 asks for no GPU: write how many, or leave the resource out")


def _unknown_name(pod: Template, _: Facts) -> Iterator[Found]:
    for container in pod.all_containers:
        for side in _SIDES:
            for name, amount in container.at("resources", side).entries():
                if name in _NAMES or name == _RETIRED or not _ALIKE.fullmatch(name) or _OTHERS.fullmatch(name):
                    continue
                near = nearest_name(name)
                message = f"no device plugin offers {name}: " + (
                    f"is {near} meant?" if near else "write nvidia.com/gpu"
                )
                free = near and not container.at("resources", side, near)
                yield Found(amount, message, (rename(amount, near),) if free else ())


def nearest_name(name: str) -> str:
    """The resource that was probably meant, "" where none is near."""
    mig = re.search(r"mig[-.]?(\d+g)[.-]?(\d+)?(?:gb?)?((?:\.me)?)$", name, re.IGNORECASE)
    if mig is not None:
        slices, gib, more = mig[1].lower(), mig[2], mig[3]
        fits = [p for p in _MIG_PROFILES if p.startswith(f"{slices}.") and (not gib or p == f"{slices}.{gib}gb{more}")]
        if gib and not fits:
            fits = [p for p in _MIG_PROFILES if p.startswith(f"{slices}.{gib}")]
        return f"nvidia.com/mig-{fits[0]}" if len(fits) == 1 else ""
    plain = re.sub(r"[^a-z]", "", name.lower())
    if plain in (
        "nvidiagpu",
        "nvidiacomgpu",
        "nvidiagpus",
        "nvidiacomgpus",
        "gpu",
        "gpus",
        "nvidia",
        "nvidiacom",
        "gpunvidiacom",
    ):
        return GPU
    if plain.endswith("gpushared"):
        return f"{GPU}.shared"
    found = difflib.get_close_matches(name, _NAMES, 1, 0.85)
    return found[0] if found else ""


def _retired_name(pod: Template, _: Facts) -> Iterator[Found]:
    for container in pod.all_containers:
        resources = container.at("resources")
        for side in _SIDES:
            old = resources.at(side, _RETIRED)
            if old:
                message = f"{_RETIRED} is gone since Kubernetes 1.11: write {GPU}"
                yield Found(old, message, (drop(old) if resources.at(side, GPU) else rename(old, GPU),))


def _quota_key(whole: Field, _: Facts) -> Iterator[Found]:
    if whole.at("kind").text != "ResourceQuota":
        return
    hard = whole.at("spec", "hard")
    for name, amount in hard.entries():
        bare = name.removeprefix("limits.")
        if not is_gpu(bare):
            continue
        right = f"requests.{bare}"
        message = f"quota of an extended resource is counted under {right} alone"
        yield Found(amount, message, (drop(amount) if hard.at(right) else rename(amount, right),))


def _amount(field: Field) -> Fraction | None:
    if isinstance(field.value, bool) or not isinstance(field.value, int | float | str):
        return None
    try:
        return parse(str(field.value))
    except QuantityError:
        return None


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
        level=Level.ERROR,
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
        level=Level.ERROR,
        title="Requested GPUs differ from their limit",
        effect=(
            "The API server refuses the pod: `spec.containers[0].resources.requests: Invalid value: \"1\": must be "
            "equal to nvidia.com/gpu limit of 2`."
        ),
        bad=_POD.format("{limits: {nvidia.com/gpu: 2}, requests: {nvidia.com/gpu: 1}}"),
        good=_POD.format("{limits: {nvidia.com/gpu: 2}, requests: {nvidia.com/gpu: 2}}"),
        template=_unequal,
        fixable=True,
        source="https://github.com/kubernetes/kubernetes: pkg/apis/core/validation, ValidateResourceRequirements",
    ),
    Rule(
        id="G03",
        level=Level.ERROR,
        title="The number of GPUs is no whole number, or zero",
        effect=(
            "Of a fraction the API server says `must be an integer`; with zero the pod starts without a GPU, and the "
            "program says that it finds none."
        ),
        bad=_POD.format("{limits: {nvidia.com/gpu: 0.5}}"),
        good=_POD.format("{limits: {nvidia.com/gpu: '1'}}"),
        template=_not_whole,
    ),
    Rule(
        id="G04",
        level=Level.ERROR,
        title="No device plugin offers a resource of this name",
        effect="The pod stays Pending for ever: `0/4 nodes are available: 4 Insufficient nvidia.com/gpus`.",
        bad=_POD.format("{limits: {nvidia.com/gpus: 1}}"),
        good=_POD.format("{limits: {nvidia.com/mig-1g.10gb: 1}}"),
        template=_unknown_name,
        fixable=True,
        source="https://github.com/NVIDIA/k8s-device-plugin: README.md",
    ),
    Rule(
        id="G05",
        level=Level.ERROR,
        title="The GPU resource of Kubernetes before 1.11 is asked for",
        effect="The pod stays Pending for ever: no node offers `alpha.kubernetes.io/nvidia-gpu` any more.",
        bad=_POD.format("{limits: {alpha.kubernetes.io/nvidia-gpu: 1}}"),
        good=_POD.format("{limits: {nvidia.com/gpu: 1}}"),
        template=_retired_name,
        fixable=True,
        source="https://github.com/kubernetes/kubernetes/pull/61498",
    ),
    Rule(
        id="G15",
        level=Level.ERROR,
        title="A quota of GPUs lacks `requests.`",
        effect=(
            "Nothing is limited, or the API server refuses the quota: `must be a standard resource for quota`: of "
            "extended resources it counts `requests.` alone."
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
