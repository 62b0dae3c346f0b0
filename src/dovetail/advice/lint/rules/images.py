# SPDX-License-Identifier: Apache-2.0
"""Rules about the images of GPU containers: their tags, their pull policies, and the drivers that they need.

The CUDA version of an image is known from its tag, or for NVIDIA's framework images from their release. A CUDA version
newer than the driver's works if NVIDIA's forward compatibility package, which NVIDIA's images contain, supports the
driver. Only drivers that NVIDIA lists as unsupported are reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from dovetail.advice.lint.pods import Template
from dovetail.advice.lint.rule import Facts, KnownNode, Rule, RuleMatch, Severity
from dovetail.advice.lint.selection import may_run

Cuda = tuple[int, int]

MOVING = re.compile(r"latest|latest[-_.].*|.*[-_.]latest|nightly|main|master|edge")
LARGE = re.compile(
    r"nvcr\.io/nvidia/(pytorch|tensorflow|jax|nemo|tritonserver|tensorrt|physicsnemo/physicsnemo|rapidsai/\w+|"
    r"tensorrt-llm/\w+|cuda-quantum)|nvcr\.io/nim/.*|vllm/vllm-openai|lmsysorg/sglang|pytorch/pytorch|rayproject/ray-ml|"
    r"ghcr\.io/huggingface/text-generation-inference|huggingface/transformers-pytorch-gpu"
)
"""Large public images, which need no pull secret, so that a cached copy exposes nothing to other pods of the node."""
_CUDA_IMAGE = re.compile(r"(nvidia|nvcr\.io/nvidia)/cuda")
_CUDA_TAG = re.compile(r"(\d{1,3})\.(\d{1,3})(\.\d+)?-.*")
_TORCH_TAG = re.compile(r".*-cuda(\d{1,3})\.(\d{1,3})-cudnn\d+-runtime")
_FRAMEWORK = re.compile(r"nvcr\.io/nvidia/(pytorch|tensorflow|jax|tritonserver)")
_FRAMEWORK_TAG = re.compile(r"(\d\d)\.(\d\d)(-(tf2-)?py3(-min|-sdk)?)?")
_FRAMEWORKS: tuple[tuple[Cuda, Cuda], ...] = (
    ((25, 8), (13, 0)), ((25, 3), (12, 8)), ((24, 5), (12, 4)), ((23, 8), (12, 2)), ((23, 4), (12, 1)),
    ((23, 1), (12, 0)), ((22, 5), (11, 7)),
)  # fmt: skip
"""(release as year and month, its CUDA version, which later releases have at least). Source: NVIDIA's release notes of
each container, https://docs.nvidia.com/deeplearning/frameworks/ and .../triton-inference-server/release-notes/."""
_NOT_FORWARD: tuple[tuple[Cuda, frozenset[int]], ...] = (
    ((12, 8), frozenset({418, 440, 450, 460, 510, 520, 530, 545, 555, 560})),
    ((12, 3), frozenset({418, 440, 450, 460, 510, 520})),
    ((12, 1), frozenset({418, 440, 460, 520})),
)
"""(CUDA version, driver branches without forward compatibility for it and later versions). Source: the driver
requirements of SGLang 25.10, MXNet 24.05 and Triton 23.04 in NVIDIA's release notes."""
_CONSUMER = re.compile(r"(?i).*(geforce|titan).*")
"""Products without forward compatibility: https://docs.nvidia.com/deploy/cuda-compatibility/."""


class Image(Struct, frozen=True):
    """An image reference. `name` includes the registry, except Docker Hub's. `tag` is "" if there is none."""

    name: str
    tag: str
    digest: str


def image_of(text: str) -> Image | None:
    """The parts of an image reference; None if it is invalid or a placeholder. Capitals are invalid in the name."""
    if not text or re.search(r"[\s{}$<>]", text):
        return None
    rest, _, digest = text.partition("@")
    path, _, last = rest.rpartition("/")
    base, _, tag = last.partition(":")
    if base != base.lower():
        return None
    name = f"{path}/{base}" if path else base
    for ours in ("docker.io/", "index.docker.io/", "registry-1.docker.io/"):
        name = name.removeprefix(ours)
    return Image(name, tag, digest)


def _moving(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    if not pod.uses_gpu:
        return
    for container in pod.gpu_containers or pod.containers:
        field = container.at("image")
        image = image_of(field.text)
        if image is None:
            continue
        policy = container.at("imagePullPolicy")
        if not image.digest and not image.tag:
            yield RuleMatch(field, f"{field.text} has no tag, which means latest: write a version, or a digest")
        elif not image.digest and MOVING.fullmatch(image.tag):
            yield RuleMatch(field, f"{field.text} is a different image after each push: write a version, or a digest")
        elif policy.text == "Always" and LARGE.fullmatch(image.name):
            yield RuleMatch(policy, f"{field.text} never changes, and is large: write imagePullPolicy: IfNotPresent")


def _newer_than_driver(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    if not pod.uses_gpu or not facts.nodes:
        return
    drivers = [(node, driver) for node in facts.nodes if may_run(pod, node) and (driver := driver_of(node))]
    for container in pod.gpu_containers or pod.containers:
        field = container.at("image")
        image = image_of(field.text)
        cuda = image and cuda_of(image)
        if not image or not cuda:
            continue
        old = [(node, driver) for node, driver in drivers if _too_old(driver, image, cuda)]
        if old:
            node, driver = old[0]
            more = f", as have {len(old) - 1} others of the {len(drivers)} nodes it may run on" if len(old) > 1 else ""
            message = (
                f"{field.text} has CUDA {_dotted(cuda)}, and {node.name} has driver {driver.version} for CUDA "
                f"{_dotted(driver.cuda)}{more}: use an image for CUDA {_dotted(driver.cuda)}, or newer drivers"
            )
            yield RuleMatch(field, message)


class DriverVersion(Struct, frozen=True):
    """`cuda` is the newest version that the driver itself supports."""

    version: str
    branch: int
    cuda: Cuda
    consumer: bool


def driver_of(node: KnownNode) -> DriverVersion | None:
    """The driver of a node from the labels of GPU Feature Discovery, with their current or old names; None without
    them."""
    version = _label(node, "driver-version", "driver")
    cuda = _label(node, "runtime-version", "runtime")
    driver, runtime = re.match(r"\d{1,4}\b", version), re.match(r"(\d{1,3})\.(\d{1,3})\b", cuda)
    if driver is None or runtime is None:
        return None
    consumer = _CONSUMER.fullmatch(node.labels.get("nvidia.com/gpu.product", "")) is not None
    return DriverVersion(version, int(driver[0]), (int(runtime[1]), int(runtime[2])), consumer)


def _label(node: KnownNode, name: str, old: str) -> str:
    full = node.labels.get(f"nvidia.com/cuda.{name}.full")
    parts = (
        [node.labels.get(f"nvidia.com/cuda.{prefix}.{part}", "") for part in ("major", "minor")]
        for prefix in (name, old)
    )
    return full or next((".".join(found) for found in parts if all(found)), "")


def cuda_of(image: Image) -> Cuda | None:
    """The least CUDA version of an image; None if unknown."""
    if _CUDA_IMAGE.fullmatch(image.name):
        match = _CUDA_TAG.fullmatch(image.tag)
    elif image.name == "pytorch/pytorch":
        match = _TORCH_TAG.fullmatch(image.tag)
    elif _FRAMEWORK.fullmatch(image.name) and (match := _FRAMEWORK_TAG.fullmatch(image.tag)):
        release = int(match[1]), int(match[2])
        return next((cuda for first, cuda in _FRAMEWORKS if release >= first), None)
    else:
        return None
    return (int(match[1]), int(match[2])) if match else None


def _too_old(driver: DriverVersion, image: Image, cuda: Cuda) -> bool:
    """Whether the driver is too old for the image. Within a major version a newer CUDA runs on an older driver, unless
    the image itself refuses to start, as those of `nvidia/cuda` do."""
    if driver.cuda >= cuda:
        return False
    if image.name == "pytorch/pytorch":
        return driver.cuda[0] < cuda[0]
    forward = driver.branch not in next((branches for first, branches in _NOT_FORWARD if cuda >= first), ())
    if driver.cuda[0] < cuda[0]:
        return driver.consumer or not forward
    return not forward and _CUDA_IMAGE.fullmatch(image.name) is not None


def _dotted(cuda: Cuda) -> str:
    return f"{cuda[0]}.{cuda[1]}"


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  containers:
  - name: train
    image: {0}
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""
_NODE = """\
---
apiVersion: v1
kind: Node
metadata:
  name: gpu-1
  labels:
    nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB
    nvidia.com/cuda.driver-version.full: {0}
    nvidia.com/cuda.runtime-version.full: "{1}"
"""
_TORCH = _POD.format("nvcr.io/nvidia/pytorch:25.08-py3")

RULES = (
    Rule(
        id="G32",
        level=Severity.WARNING,
        title="The image tag is not fixed, or a large image is pulled at every start",
        effect=(
            "Pods of one job, or a restarted pod, may run different code. With latest, or Always, no pod starts while "
            "the registry is unreachable or limits its rate: `ErrImagePull`."
        ),
        bad=_POD.format("registry.example.com/train"),
        good=_POD.format("registry.example.com/train:1.4"),
        template=_moving,
        source="https://kubernetes.io/docs/concepts/containers/images/#image-pull-policy",
    ),
    Rule(
        id="G33",
        level=Severity.WARNING,
        title="The image's CUDA is newer than the driver of the nodes",
        effect=(
            "The container does not start: `nvidia-container-cli: requirement error: unsatisfied condition: "
            "cuda>=12.8`, or its program fails with `CUDA driver version is insufficient for CUDA runtime version`."
        ),
        bad=_TORCH + _NODE.format("560.35.03", "12.6"),
        good=_TORCH + _NODE.format("580.95.05", "13.0"),
        template=_newer_than_driver,
        needs_nodes=True,
        source="https://docs.nvidia.com/deploy/cuda-compatibility/",
    ),
)  # fmt: skip
