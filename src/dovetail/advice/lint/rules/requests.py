# SPDX-License-Identifier: Apache-2.0
"""The rule about requests of devices and huge pages with which no container starts; others are about GPUs.

Neither can be overcommitted: a limit is needed, and the request is equal to it. Devices are whole; huge pages are a
multiple of their size, which is one that a kernel has, and are only for containers with CPU or memory, which a
LimitRange may add. A volume of huge pages needs a container that requests them. What is missing in a container without
an image may be where the rest of it is: it is a patch.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from dovetail.advice.lint.edits import put
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, amount, amounts_of, is_gpu
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.core.bounded_cache import remembered

_HUGE, _MEDIUM = "hugepages-", "HugePages"
_KUBERNETES, _QUOTA = "kubernetes.io/", "requests."
_SIZES = ("64Ki", "1Mi", "2Mi", "16Mi", "32Mi", "512Mi", "1Gi", "2Gi", "16Gi")
"""The sizes of huge pages of Linux, by architecture: Documentation/admin-guide/mm/hugetlbpage.rst."""
_PENDING = "The pod stays Pending: no node has huge pages of this size."
_NOT_MOUNTED = "The pod stays in ContainerCreating: the kubelet cannot mount the volume, as the pod has no huge pages."


def _refused(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    for container in pod.all_containers:
        for side, name, asked in amounts_of(container):
            if not asked:
                continue
            if "/" in name and _is_device(name):
                yield from _uneven(container, side, name, asked, Fraction(1), "a whole number")
            elif name.startswith(_HUGE):
                yield from _huge(pod, container, side, name, asked)
    yield from _volumes(pod)


@remembered(64)
def _is_device(name: str) -> bool:
    """Whether the API server takes this name with a domain for an extended resource, and it is no GPU."""
    return _KUBERNETES not in name and not name.startswith(_QUOTA) and not is_gpu(name)


def _uneven(container: Field, side: str, name: str, asked: Field, unit: Fraction, what: str) -> Iterator[RuleMatch]:
    value = amount(asked)
    if value is None or value < 0 or (value / unit).denominator != 1:
        yield RuleMatch(asked, f"{name}: {asked.value} is not {what}")
        return
    if side == "limits":
        return
    limit = container.at("resources", "limits", name)
    if not limit and container.at("image"):
        message = f"{name} has a request and no limit: set the limit to the same amount"
        yield RuleMatch(asked, message, (put(limit, asked.value),))
    elif limit and (most := amount(limit)) is not None and most != value:
        message = f"{name}: the request is {asked.value} and the limit is {limit.value}: write {limit.value} for both"
        yield RuleMatch(asked, message, (put(asked, limit.value),))


def _huge(pod: Template, container: Field, side: str, name: str, asked: Field) -> Iterator[RuleMatch]:
    size = name.removeprefix(_HUGE)
    page = amount(Field(size))
    if size not in _SIZES or not page:
        message = f"no kernel has huge pages of {size}: write {_HUGE}2Mi or {_HUGE}1Gi, as the nodes have"
        yield RuleMatch(asked, message, effect=_PENDING)
        return
    wrong = list(_uneven(container, side, name, asked, page, f"a multiple of {size}"))
    yield from wrong
    plain = {one for _, one, _ in amounts_of(container)} | {one for one, _ in _of_pod(pod)}
    if not wrong and side == "limits" and container.at("image") and plain.isdisjoint({"cpu", "memory"}):
        message = f"{name} needs CPU or memory beside it: set their limits, unless a LimitRange does"
        yield RuleMatch(asked, message, guess=True)


def _of_pod(pod: Template) -> Iterator[tuple[str, Field]]:
    for side in ("limits", "requests"):
        yield from pod.spec.at("resources", side).entries()


def _volumes(pod: Template) -> Iterator[RuleMatch]:
    for volume in pod.spec.at("volumes").each():
        medium = volume.at("emptyDir", "medium")
        if pod.partial or not medium.text.startswith(_MEDIUM) or not all(one.at("image") for one in pod.all_containers):
            continue
        of_containers = {name for one in pod.all_containers for _, name, _ in amounts_of(one)}
        asked = of_containers | {name for name, _ in _of_pod(pod)}
        sizes = {name.removeprefix(_HUGE) for name in asked if name.startswith(_HUGE)}
        size = medium.text.removeprefix(_MEDIUM).removeprefix("-")
        if not sizes or (size and size not in sizes):
            message = f"no container requests {_HUGE}{size or '2Mi'}, in which this volume is: add it to the limits"
            yield RuleMatch(medium, message, effect=_NOT_MOUNTED)


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
    securityContext: {{capabilities: {{add: [IPC_LOCK]}}}}
    resources:
      limits: {{nvidia.com/gpu: 1, cpu: 8, memory: 64Gi{0}}}
      requests: {{rdma/hca: 1}}
"""

RULES = (
    Rule(
        id="G55",
        level=Severity.ERROR,
        title="A container cannot have the devices or huge pages in the way in which it requests them",
        effect=(
            "The API server refuses the pod: `Limit must be set for non overcommitable resources`, `must be equal to "
            "rdma/hca limit of 1`, `must be an integer`, `HugePages require cpu or memory`."
        ),
        bad=_POD.format(""),
        good=_POD.format(", rdma/hca: 1"),
        template=_refused,
        fixable=True,
        source=(
            "https://github.com/kubernetes/kubernetes: pkg/apis/core/validation, ValidateResourceRequirements; "
            "https://kubernetes.io/docs/tasks/manage-hugepages/scheduling-hugepages/"
        ),
    ),
)
