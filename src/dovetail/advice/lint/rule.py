# SPDX-License-Identifier: Apache-2.0
"""What a rule is, what it finds, and what it may know of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cached_property

from msgspec import Struct

from dovetail.advice.lint.edits import Edit
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template


class Severity(Enum):
    """ERROR: rejected, or never runs. WARNING: runs, but slow, unsafe or wasteful. INFO: hygiene."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class RuleMatch(Struct, frozen=True):
    """`message` says what is wrong at the field and what to write instead. `edits` mend it where that can be known.
    `guess`: without nodes to look at it may be wrong; of an error it makes a warning."""

    field: Field
    message: str
    edits: tuple[Edit, ...] = ()
    guess: bool = False


class KnownNode(Struct, frozen=True):
    """What rules ask of a node. `allocatable` holds quantities as they are written."""

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...] = ()


class Facts(Struct, frozen=True, eq=False, dict=True):
    """`nodes` and `schedulers` (names) are None where they are not known; `objects` is everything that is linted in
    this run, for rules that look from one object to another. Compared by identity, so that what a rule works out of
    them can be kept for them."""

    nodes: tuple[KnownNode, ...] | None = None
    schedulers: frozenset[str] | None = None
    objects: tuple[Field, ...] = ()

    def of_kind(self, kind: str) -> tuple[Field, ...]:
        """The objects of a kind, of whatever group."""
        return self._by_kind.get(kind, ())

    @cached_property
    def _by_kind(self) -> dict[str, tuple[Field, ...]]:
        found: dict[str, list[Field]] = {}
        for whole in self.objects:
            found.setdefault(whole.at("kind").text, []).append(whole)
        return {kind: tuple(some) for kind, some in found.items()}


class Rule(Struct, frozen=True):
    """One entry: `effect` is what happens if nothing is done, in the cluster's own words where it has some; `bad` and
    `good` are manifests, which the docs show and the tests lint. `template` looks at each pod template, `whole` at each
    object. `fixable`: some or all findings carry edits. `needs_nodes`: without nodes it finds nothing, or guesses.
    `cel` is true of a pod that passes, for a ValidatingAdmissionPolicy (`variables.pod` is the Pod or the template)."""

    id: str
    level: Severity
    title: str
    effect: str
    bad: str
    good: str
    template: Callable[[Template, Facts], Iterator[RuleMatch]] | None = None
    whole: Callable[[Field, Facts], Iterator[RuleMatch]] | None = None
    fixable: bool = False
    needs_nodes: bool = False
    cel: str = ""
    source: str = ""
