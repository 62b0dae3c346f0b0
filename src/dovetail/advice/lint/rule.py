# SPDX-License-Identifier: Apache-2.0
"""The records of the linter: rules, matches, and facts of a cluster."""

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
    """A match of a rule. `message` states the problem of the field and the fix. `edits` make the fix if it is known.
    `guess`: the match may be wrong, for instance without nodes; an error is then reported as a warning.
    `effect` replaces that of the rule, to name what the match is about."""

    field: Field
    message: str
    edits: tuple[Edit, ...] = ()
    guess: bool = False
    effect: str = ""


class KnownNode(Struct, frozen=True):
    """The facts of a node. `allocatable` has quantities as text."""

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...] = ()


class Facts(Struct, frozen=True, eq=False, dict=True):
    """The facts of a cluster. `nodes` and `schedulers` (names) are None if unknown; `objects` are all objects of this
    run, for rules that look up other objects. Facts compare by identity, so that rules can cache results for them."""

    nodes: tuple[KnownNode, ...] | None = None
    schedulers: frozenset[str] | None = None
    objects: tuple[Field, ...] = ()

    def of_kind(self, kind: str) -> tuple[Field, ...]:
        """The objects of a kind, in any API group."""
        return self._by_kind.get(kind, ())

    @cached_property
    def _by_kind(self) -> dict[str, tuple[Field, ...]]:
        found: dict[str, list[Field]] = {}
        for whole in self.objects:
            found.setdefault(whole.at("kind").text, []).append(whole)
        return {kind: tuple(some) for kind, some in found.items()}


class Rule(Struct, frozen=True):
    """One rule.

    `effect` is the consequence without a fix, with the cluster's error message if there is one. `bad` and `good` are
    manifests, which the docs show and the tests lint. `template` checks each pod template, `whole` each object.
    `fixable`: some or all findings have edits. `needs_nodes`: without nodes the rule finds nothing, or guesses.
    `backstop`: it is left out where another rule reports an error at the same place. The rules that are admission
    policies, too, are in `policies`."""

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
    backstop: bool = False
    source: str = ""
