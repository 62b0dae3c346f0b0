# SPDX-License-Identifier: Apache-2.0
"""Pod templates as rules see them: where they stand, their containers, and the GPUs that these ask for."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property

from msgspec import Struct

from dovetail.advice.lint.field import Field
from dovetail.core.devices.mig import names
from dovetail.core.model import GPU, SHARED_GPU
from dovetail.core.quantities import QuantityError, parse
from dovetail.kube.manifests.templates import group_kind, templates

_GPU_ANNOTATIONS = ("dovetail.dev/gpu-memory", "dovetail.dev/gpu-fraction")


def is_gpu(resource: str) -> bool:
    """Whether NVIDIA's device plugin offers such a resource: whole, MIG, or shared."""
    return resource in (GPU, SHARED_GPU) or names.read(resource) is not None


def amount(field: Field) -> Fraction | None:
    """A quantity; None where there is none, or what is there is none."""
    if isinstance(field.value, bool) or not isinstance(field.value, int | float | str):
        return None
    try:
        return parse(str(field.value))
    except QuantityError:
        return None


def count(field: Field) -> int | None:
    """A whole number of devices, written as a number or a text; None for what is none."""
    value = None if isinstance(field.value, float) else amount(field)
    return int(value) if value is not None and value.denominator == 1 else None


class Template(Struct, frozen=True, dict=True):
    """`whole` is the object, `field` the template (of a Pod, the Pod itself)."""

    whole: Field
    field: Field

    @cached_property
    def group_kind(self) -> tuple[str, str]:
        """Of the object."""
        return group_kind(self.whole.value)

    @property
    def spec(self) -> Field:
        return self.field.at("spec")

    @property
    def meta(self) -> Field:
        return self.field.at("metadata")

    @cached_property
    def containers(self) -> tuple[Field, ...]:
        """Those that run the pod's work."""
        return tuple(self.spec.at("containers").each())

    @cached_property
    def init_containers(self) -> tuple[Field, ...]:
        return tuple(self.spec.at("initContainers").each())

    @property
    def all_containers(self) -> tuple[Field, ...]:
        return self.init_containers + self.containers

    @cached_property
    def gpu_containers(self) -> tuple[Field, ...]:
        """The containers, not the init containers, that ask for GPUs by the name of a resource."""
        return tuple(container for container in self.containers if any(gpus_of(container)))

    @cached_property
    def gpus(self) -> int:
        """GPUs, MIG devices and replicas of shared ones that the containers ask for together, as far as they can be
        read."""
        return sum(max(count(amount) or 0, 0) for container in self.containers for _, amount in gpus_of(container))

    @cached_property
    def uses_gpu(self) -> bool:
        """Whether the pod asks for a GPU in any way that can be seen: a resource, one of our annotations, a claim."""
        annotations = self.meta.at("annotations")
        return (
            bool(self.gpu_containers)
            or any(annotations.at(name) for name in _GPU_ANNOTATIONS)
            or any(claim for claim in self.spec.at("resourceClaims").each())
        )

    def env(self, container: Field) -> Iterator[tuple[str, Field]]:
        """(name, entry) of each variable."""
        for entry in container.at("env").each():
            if entry.at("name").text:
                yield entry.at("name").text, entry


def gpus_of(container: Field) -> Iterator[tuple[str, Field]]:
    """(resource, amount) of each GPU resource: the limit, which is what counts, or the request where no limit is."""
    limits, requests = container.at("resources", "limits"), container.at("resources", "requests")
    for name, amount in limits.entries():
        if is_gpu(name):
            yield name, amount
    for name, amount in requests.entries():
        if is_gpu(name) and not limits.at(name):
            yield name, amount


def templates_of(whole: Field) -> Iterator[Template]:
    """The pod templates of an object."""
    for path, _ in templates(whole.value):
        yield Template(whole, whole.at(*path))
