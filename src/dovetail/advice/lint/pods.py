# SPDX-License-Identifier: Apache-2.0
"""Pod templates for rules: their place in the object, their containers, and the requested GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

from msgspec import Struct

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.shapes import shape_of
from dovetail.core.bounded_cache import remembered
from dovetail.core.devices.mig import names
from dovetail.core.model import GPU, SHARED_GPU
from dovetail.core.quantities import QuantityError, parse
from dovetail.kube.manifests.templates import group_kind, templates

T = TypeVar("T")

_GPU_ANNOTATIONS = ("dovetail.dev/gpu-memory", "dovetail.dev/gpu-fraction")

FRAMEWORK = (
    r"(?i)torch|tensorflow|keras|\bjax|vllm|sglang|llm|llama|tgi|text-generation|deepspeed|nemo|megatron|nccl|\bmpi|"
    r"horovod|accelerate|python|\bray\b|paddle|transformer|triton|tensorrt|jupyter|notebook|train|tun(e|ing)|infer|"
    r"serv(e|ing)\b|model|diffusion|\bnim\b"
)
"""A pattern, in the common part of Python's and RE2's syntax."""
_FRAMEWORK = re.compile(FRAMEWORK)
_DOMAIN = "nvidia.com/"
_MANY = 2**31
"""A number below is one of devices as it stands: quantities are exact fractions, which take much longer."""


def is_gpu(resource: str) -> bool:
    """Whether this is a resource of NVIDIA's device plugin: whole, MIG or shared GPUs."""
    return resource == GPU or (resource.startswith(_DOMAIN) and _is_other_gpu(resource))


@remembered(64)
def _is_other_gpu(resource: str) -> bool:
    return resource == SHARED_GPU or names.read(resource) is not None


def amount(field: Field) -> Fraction | None:
    """The field as a quantity; None if it is missing or invalid."""
    if isinstance(field.value, bool) or not isinstance(field.value, int | float | str):
        return None
    try:
        return parse(str(field.value))
    except QuantityError:
        return None


def same(one: Field, other: Field) -> bool:
    """Whether two fields have the same value, written in the same way."""
    return type(one.value) is type(other.value) and bool(one.value == other.value)


def count(field: Field) -> int | None:
    """The field as a whole number of devices, written as a number or a string; None if it is missing or invalid."""
    if type(field.value) is int and 0 <= field.value < _MANY:
        return field.value
    value = None if isinstance(field.value, float) else amount(field)
    return int(value) if value is not None and value.denominator == 1 else None


class ContainerField(Field, frozen=True, dict=True):
    """A container of a pod, for many rules: the answers of `asked_once` are kept with it."""


def asked_once(ask: Callable[[Field], T]) -> Callable[[Field], T]:
    """The question about a container, which is worked out once for each ContainerField, and each time for other
    fields."""
    name = ask.__name__

    def answer(container: Field) -> T:
        if not isinstance(container, ContainerField):
            return ask(container)
        known: dict[str, T] = container.__dict__
        if name not in known:
            known[name] = ask(container)
        return known[name]

    return answer


class WholeField(Field, frozen=True, dict=True):
    """An object, for many rules."""

    @cached_property
    def pods(self) -> tuple[Template, ...]:
        """As `templates_of`."""
        return tuple(_templates(self))


class Template(Struct, frozen=True, dict=True):
    """A pod template. `whole` is the object, `field` the template (for a Pod, the Pod itself). `partial`: a runtime or
    a preset, which is another object, adds to it: what is missing here may be there. `peers` is that of its shape."""

    whole: Field
    field: Field
    partial: bool = False
    peers: int = 0

    @cached_property
    def group_kind(self) -> tuple[str, str]:
        """The API group and kind of the object."""
        return group_kind(self.whole.value)

    @cached_property
    def spec(self) -> Field:
        return self.field.at("spec")

    @cached_property
    def meta(self) -> Field:
        return self.field.at("metadata")

    @cached_property
    def containers(self) -> tuple[Field, ...]:
        """The containers, without init containers."""
        return tuple(map(_container, self.spec.at("containers").each()))

    @cached_property
    def init_containers(self) -> tuple[Field, ...]:
        return tuple(map(_container, self.spec.at("initContainers").each()))

    @cached_property
    def all_containers(self) -> tuple[Field, ...]:
        return self.init_containers + self.containers

    @cached_property
    def gpu_containers(self) -> tuple[Field, ...]:
        """The containers, without init containers, that request GPU resources."""
        return tuple(container for container in self.containers if any(gpus_of(container)))

    @cached_property
    def gpus(self) -> int:
        """The total of whole GPUs, MIG devices and shared replicas that the containers request, as far as readable."""
        return sum(max(count(amount) or 0, 0) for container in self.containers for _, amount in gpus_of(container))

    @cached_property
    def affinity(self) -> Field:
        return self.spec.at("affinity")

    @cached_property
    def selector(self) -> Field:
        """The nodeSelector."""
        return self.spec.at("nodeSelector")

    @cached_property
    def volumes(self) -> Mapping[str, Field]:
        """The volumes by name, those without one as ""; the first of a name."""
        found: dict[str, Field] = {}
        for volume in self.spec.at("volumes").each():
            found.setdefault(volume.at("name").text, volume)
        return found

    @cached_property
    def asked(self) -> Mapping[str, tuple[int, Field]]:
        """For each GPU resource, the number that the pod needs at the same time, and the field that requests the most.
        Init containers run one by one before the others, except sidecars."""
        found: dict[str, tuple[int, Field]] = {}
        sums: dict[str, int] = {}
        beside = [one for one in self.init_containers if one.at("restartPolicy").text == "Always"]
        for container in (*self.containers, *beside):
            for name, amount in gpus_of(container):
                sums[name] = sums.get(name, 0) + max(count(amount) or 0, 0)
                if name not in found or (count(amount) or 0) > found[name][0]:
                    found[name] = count(amount) or 0, amount
        found = {name: (sums[name], field) for name, (_, field) in found.items()}
        for container in self.init_containers:
            for name, amount in gpus_of(container):
                if (count(amount) or 0) > found.get(name, (0,))[0]:
                    found[name] = count(amount) or 0, amount
        return found

    @cached_property
    def uses_gpu(self) -> bool:
        """Whether the pod requests a GPU by a resource, a Dovetail annotation or a claim."""
        annotations = self.meta.at("annotations")
        return (
            bool(self.gpu_containers)
            or any(annotations.at(name) for name in _GPU_ANNOTATIONS)
            or any(claim for claim in self.spec.at("resourceClaims").each())
        )


@asked_once
def env_of(container: Field) -> tuple[tuple[str, Field], ...]:
    """(name, entry) of each environment variable."""
    named = [(entry.at("name").text, entry) for entry in container.at("env").each()]
    return tuple([one for one in named if one[0]])


@asked_once
def amounts_of(container: Field) -> tuple[tuple[str, str, Field], ...]:
    """(limits or requests, resource, amount) of each resource, limits first."""
    resources = container.at("resources")
    sides = ("limits", "requests")
    return tuple([(side, name, amount) for side in sides for name, amount in resources.at(side).entries()])


@asked_once
def gpu_amounts_of(container: Field) -> tuple[tuple[str, str, Field], ...]:
    """Those of `amounts_of` that are of GPU resources."""
    return tuple([one for one in amounts_of(container) if is_gpu(one[1])])


@asked_once
def cards_of(container: Field) -> int:
    """The number of whole GPUs, as far as it can be read."""
    return sum(count(amount) or 0 for name, amount in gpus_of(container) if name == GPU)


@asked_once
def mounts_of(container: Field) -> tuple[tuple[str, Field], ...]:
    """(name of the volume, mount) of each volumeMount."""
    return tuple([(mount.at("name").text, mount) for mount in container.at("volumeMounts").each()])


@asked_once
def words_of(container: Field) -> str:
    """The command and the arguments, in one line."""
    return " ".join(word.text for side in ("command", "args") for word in container.at(side).each())


def runs_framework(container: Field) -> bool:
    """Whether the image or the command names a framework, a server of models, or training: such a program has several
    processes for several GPUs."""
    return _FRAMEWORK.search(f"{container.at('image').text} {words_of(container)}") is not None


@asked_once
def gpus_of(container: Field) -> tuple[tuple[str, Field], ...]:
    """(resource, amount) of each GPU resource: the limit, or the request if there is no limit."""
    amounts = gpu_amounts_of(container)
    limited = {name for side, name, amount in amounts if side == "limits" and amount}
    return tuple([(name, amount) for side, name, amount in amounts if side == "limits" or name not in limited])


def templates_of(whole: Field) -> tuple[Template, ...]:
    """The pod templates of an object, and its pods that have none."""
    return whole.pods if isinstance(whole, WholeField) else tuple(_templates(whole))


def _container(field: Field) -> Field:
    """Pods without a template have containers whose parts are from several places: these are left as they are."""
    return ContainerField(field.value, field.path) if type(field) is Field else field


def _templates(whole: Field) -> Iterator[Template]:
    shape = shape_of(group_kind(whole.value))
    if shape is not None:
        yield from (Template(whole, one.field, one.partial, one.peers) for one in shape(whole))
        return
    for path, _ in templates(whole.value):
        yield Template(whole, whole.at(*path))
