# SPDX-License-Identifier: Apache-2.0
"""What is met in a manifest, what is made of it, and what has no equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from msgspec import Struct

from dovetail.advice.lint.edits import Edit, drop
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template


class MigrationTarget(Enum):
    """What may be written beyond what is needed. NATIVE: PodGroups of Kubernetes instead of other dialects that
    Dovetail reads. DRA: claims instead of GPUs that are asked for by the name of a resource."""

    NATIVE = "native"
    DRA = "dra"


class MigrationOutcome(Enum):
    """CHANGED: carried over. UNDERSTOOD: read as it is. LEFT: has no equal."""

    CHANGED = "changed"
    UNDERSTOOD = "understood"
    LEFT = "no equal"


class Left(Struct, frozen=True):
    """What has no equal; `message` says what is lost and what to do."""

    field: Field
    message: str


class MigrationStep(Struct, frozen=True):
    """What is met at a field. With `edits` it is carried over by them, with `adds` as new documents; `left` is what
    these lose on the way. Without edits it stays as it is, since it is `understood`, or for the user to decide."""

    field: Field
    message: str
    edits: tuple[Edit, ...] = ()
    adds: tuple[dict[str, Any], ...] = ()
    left: tuple[Left, ...] = ()
    understood: bool = False


class World(Struct, frozen=True):
    """All objects of this run, as they were before anything was changed, and what is wished for."""

    objects: tuple[Field, ...] = ()
    targets: frozenset[MigrationTarget] = frozenset()

    def named(self, group: str, kind: str, name: str, namespace: str | None = None) -> Field:
        """The object; a field that is not there where there is none. No namespace is `default`."""
        for whole in self.of(group, kind):
            meta = whole.at("metadata")
            if meta.at("name").text == name and namespace in (None, namespace_of(whole)):
                return whole
        return Field(None)

    def of(self, group: str, kind: str) -> Iterator[Field]:
        """All objects of a kind, of any version."""
        for whole in self.objects:
            if whole.at("kind").text == kind and group_of(whole) == group:
                yield whole


class SourceDialect(Struct, frozen=True):
    """A scheduler, or a time. `whole` looks at each object, `template` at each pod template; each gives the steps for
    what it meets. `schedulers` are the names under which pods ask for it."""

    name: str
    whole: Callable[[Field, World], Iterator[MigrationStep]] | None = None
    template: Callable[[Template, World], Iterator[MigrationStep]] | None = None
    schedulers: tuple[str, ...] = ()


def group_of(whole: Field) -> str:
    """The API group of an object."""
    return whole.at("apiVersion").text.rpartition("/")[0]


def namespace_of(whole: Field) -> str:
    """Of an object of a kind that has one."""
    return whole.at("metadata", "namespace").text or "default"


def left(field: Field, message: str) -> MigrationStep:
    """A step that changes nothing."""
    return MigrationStep(field, message)


def unknown(field: Field, *known: str) -> list[Left]:
    """What else stands in a mapping that is written anew."""
    return [Left(inner, "has no known equal") for name, inner in field.entries() if name not in known]


def without_status(whole: Field) -> tuple[Edit, ...]:
    """The edits that take away what the controller of another kind wrote."""
    return (drop(whole.at("status")),) if whole.at("status") else ()
