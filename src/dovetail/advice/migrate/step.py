# SPDX-License-Identifier: Apache-2.0
"""The records of migration: source dialects, steps, and settings without an equivalent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct, field

from dovetail.advice.lint.edits import Edit, drop
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template


class MigrationTarget(Enum):
    """Optional targets. NATIVE: PodGroups of Kubernetes instead of other dialects that Dovetail reads. DRA: claims
    instead of GPU resources."""

    NATIVE = "native"
    DRA = "dra"


class MigrationOutcome(Enum):
    """CHANGED: migrated. UNDERSTOOD: Dovetail reads it unchanged. LEFT: has no equivalent."""

    CHANGED = "changed"
    UNDERSTOOD = "understood"
    LEFT = "no equal"


class Left(Struct, frozen=True):
    """A field without an equivalent; `message` states what is lost and what to do."""

    field: Field
    message: str


class MigrationStep(Struct, frozen=True):
    """The migration of a field. `edits` migrate it in place, `adds` are new documents, `left` are the settings that are
    lost. Without edits the field stays: Dovetail reads it (`understood`), or the user must decide."""

    field: Field
    message: str
    edits: tuple[Edit, ...] = ()
    adds: tuple[dict[str, Any], ...] = ()
    left: tuple[Left, ...] = ()
    understood: bool = False


class World(Struct, frozen=True):
    """All original objects of this run, and the optional targets."""

    objects: tuple[Field, ...] = ()
    targets: frozenset[MigrationTarget] = frozenset()

    def named(self, group: str, kind: str, name: str, namespace: str | None = None) -> Field:
        """The object of this name; a missing field if there is none. The namespace of an object defaults to
        `default`."""
        for whole in self.of(group, kind):
            meta = whole.at("metadata")
            if meta.at("name").text == name and namespace in (None, namespace_of(whole)):
                return whole
        return Field(None)

    def of(self, group: str, kind: str) -> Iterator[Field]:
        """All objects of a kind, in any version."""
        for whole in self.objects:
            if whole.at("kind").text == kind and group_of(whole) == group:
                yield whole


class SourceDialect(Struct, frozen=True):
    """A scheduler, or old Kubernetes versions. `whole` returns the steps for an object, `template` those for a pod
    template. `schedulers` are the schedulerNames of the dialect.

    `domains` are the domains, with their subdomains, of its labels, annotations and resources: each that no step
    migrates is reported. `no_equal` has for a name what to do instead; a name there belongs to the dialect in any
    domain."""

    name: str
    whole: Callable[[Field, World], Iterator[MigrationStep]] | None = None
    template: Callable[[Template, World], Iterator[MigrationStep]] | None = None
    schedulers: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    no_equal: Mapping[str, str] = field(default_factory=dict)

    def owns(self, name: str) -> bool:
        """Whether a label, annotation or resource of this name is of the dialect."""
        domain, slash, _ = name.partition("/")
        return (bool(slash) and self.owns_group(domain)) or name in self.no_equal

    def owns_group(self, group: str) -> bool:
        """Whether an API group, or the domain of a name, is of the dialect."""
        return any(group == one or group.endswith("." + one) for one in self.domains)


def group_of(whole: Field) -> str:
    """The API group of an object."""
    return whole.at("apiVersion").text.rpartition("/")[0]


def namespace_of(whole: Field) -> str:
    """The namespace of an object of a namespaced kind."""
    return whole.at("metadata", "namespace").text or "default"


def left(field: Field, message: str) -> MigrationStep:
    """A step that changes nothing."""
    return MigrationStep(field, message)


def unknown(field: Field, *known: str) -> list[Left]:
    """The fields of a mapping that are not among `known`, and are lost when it is rewritten."""
    return [Left(inner, "has no known equal") for name, inner in field.entries() if name not in known]


def without_status(whole: Field) -> tuple[Edit, ...]:
    """The edits that remove the status, which another controller wrote."""
    return (drop(whole.at("status")),) if whole.at("status") else ()
