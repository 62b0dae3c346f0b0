# SPDX-License-Identifier: Apache-2.0
"""Migration of documents, step by step, as one step may read the result of another.

Rules
- The edits of a step are made in the text, all or none. If they cannot be made, a note asks the user to make them.
- New documents follow the one that requires them, or join its items if it is a list. A document is not added if one of
  the same kind and name exists.
- Lines are those of the original file.
- Each label, annotation and resource of a dialect that remains in the end is in a note, of its step or as one without
  an equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.advice.lint.edits import append
from dovetail.advice.lint.engine import name_of
from dovetail.advice.lint.field import Field, Path
from dovetail.advice.lint.pods import templates_of
from dovetail.advice.lint.rewrite import NotRewritten, rewritten
from dovetail.advice.lint.source import SourceDocument, document
from dovetail.advice.migrate.dialects import DIALECTS
from dovetail.advice.migrate.step import MigrationOutcome, MigrationStep, SourceDialect, World, group_of

_NAMED_IN = frozenset({"labels", "annotations", "limits", "requests"})
"""The mappings whose keys are names that a scheduler reads."""
_UNKNOWN = "has no known equal"

_MOST = 10_000
"""The most steps for one document: dialects that undo each other must not loop forever."""
_BY_HAND = "cannot be changed in the text alone (an anchor, a merge key, or JSON): change it by hand"


class MigrationNote(Struct, frozen=True):
    """A message about a field. `line` counts from 1, in the original file."""

    outcome: MigrationOutcome
    dialect: str
    file: str
    line: int
    object: str
    path: str
    message: str


class MigratedFile(Struct, frozen=True):
    """A file, and what is changed in it as a unified diff."""

    file: str
    changed: bool
    diff: str


class Migration(Struct, frozen=True):
    """Files that were migrated, and the notes about them."""

    files: tuple[MigratedFile, ...]
    notes: tuple[MigrationNote, ...] = field(name="told")


class Migrated(Struct, frozen=True):
    """The migrated text of a file, and the notes about it."""

    text: str
    notes: tuple[MigrationNote, ...]


def migrate(documents: Sequence[SourceDocument], world: World) -> Migrated:
    """The documents of one file, migrated. Documents that cannot be read stay unchanged and get a note."""
    known = {_key(whole.value) for whole in world.objects}
    texts: list[str] = []
    notes: list[MigrationNote] = []
    for each in documents:
        if each.error is not None:
            notes.append(
                MigrationNote(MigrationOutcome.LEFT, "", each.file, each.error.line, "", "", each.error.message)
            )
            texts.append(each.text)
        else:
            texts.append(_Document(each, world, known, notes).text)
    return Migrated("".join(texts), tuple(dict.fromkeys(notes)))


class _Document:
    """One document during its migration."""

    def __init__(
        self, original: SourceDocument, world: World, known: set[tuple[str, ...]], notes: list[MigrationNote]
    ) -> None:
        self._original, self._now, self._world, self._known = original, original, world, known
        self._refused: set[tuple[str, Path]] = set()
        self._added: list[dict[str, Any]] = []
        found: list[MigrationNote] = []
        for _ in range(_MOST):
            if not self._one_step(found):
                break
        self._add_remaining(found)
        notes += sorted(found, key=lambda one: one.line)

    @property
    def text(self) -> str:
        """The text of the document, with the new documents after it."""
        text = self._now.text
        for each in self._added:
            made = yaml.safe_dump(each, sort_keys=False, allow_unicode=True)
            text = f"{text if not text or text.endswith(chr(10)) else text + chr(10)}---\n{made}"
        return text

    def _one_step(self, notes: list[MigrationNote]) -> bool:
        for dialect, whole, step in _steps(self._now, self._world):
            if not step.edits or (step.message, step.field.path) in self._refused:
                continue
            adds = [each for each in step.adds if _key(each) not in self._known]
            edits = step.edits
            items = Field(self._now.value).at("items")
            listed = isinstance(items.value, list)
            if listed:
                edits += tuple(append(items, each) for each in adds)
            try:
                if adds and not listed and self._now.text.lstrip().startswith("{"):
                    raise NotRewritten("a JSON file holds one document")
                changed = document(self._now.file, rewritten(self._now.text, edits), self._now.first_line)
            except NotRewritten:
                self._refused.add((step.message, step.field.path))
                self._add(notes, MigrationOutcome.LEFT, dialect, whole, step.field, f"{step.message}: {_BY_HAND}")
                continue
            self._add(notes, MigrationOutcome.CHANGED, dialect, whole, step.field, step.message)
            for one in step.left:
                self._add(notes, MigrationOutcome.LEFT, dialect, whole, one.field, one.message)
            self._known |= {_key(each) for each in adds}
            self._added += [] if listed else adds
            self._now = replace(changed, first_line=self._original.first_line)
            return True
        return False

    def _add_remaining(self, notes: list[MigrationNote]) -> None:
        noted = set()
        for dialect, whole, step in _steps(self._now, self._world):
            noted.add(step.field.path)
            if not step.edits:
                outcome = MigrationOutcome.UNDERSTOOD if step.understood else MigrationOutcome.LEFT
                self._add(notes, outcome, dialect, whole, step.field, step.message)
        for whole in self._now.objects():
            group, kind = group_of(whole), whole.at("kind")
            owner = next((dialect for dialect in DIALECTS if dialect.owns_group(group)), None)
            if owner is not None and not any(path[: len(whole.path)] == whole.path for path in noted):
                self._add(notes, MigrationOutcome.LEFT, owner, whole, kind, f"{kind.value} of {group} {_UNKNOWN}")
            for dialect, one in _names(whole):
                if one.path not in noted:
                    why = dialect.no_equal.get(one.name, _UNKNOWN)
                    self._add(notes, MigrationOutcome.LEFT, dialect, whole, one, why)

    def _add(
        self,
        notes: list[MigrationNote],
        outcome: MigrationOutcome,
        dialect: SourceDialect,
        whole: Field,
        field: Field,
        message: str,
    ) -> None:
        path = field.path[len(whole.path) :]
        line, _ = self._original.position(field.path)
        shown = str(replace(field, path=path))
        notes.append(MigrationNote(outcome, dialect.name, self._original.file, line, name_of(whole), shown, message))


def _steps(of: SourceDocument, world: World) -> Iterator[tuple[SourceDialect, Field, MigrationStep]]:
    for whole in of.objects():
        if not isinstance(whole.value, dict):
            continue
        pods = tuple(templates_of(whole))
        for dialect in DIALECTS:
            if dialect.template is not None:
                for pod in pods:
                    yield from ((dialect, whole, step) for step in dialect.template(pod, world))
            if dialect.whole is not None:
                yield from ((dialect, whole, step) for step in dialect.whole(whole, world))


def _names(below: Field) -> Iterator[tuple[SourceDialect, Field]]:
    """The labels, annotations and resources of dialects, wherever they are in the object."""
    for inner in (*below.each(), *(value for _, value in below.entries())):
        if below.name in _NAMED_IN:
            owner = next((dialect for dialect in DIALECTS if dialect.owns(inner.name)), None)
            if owner is not None:
                yield owner, inner
        yield from _names(inner)


def _key(value: Any) -> tuple[str, ...]:
    """The group, kind, namespace and name of an object."""
    whole = Field(value)
    meta = whole.at("metadata")
    group = whole.at("apiVersion").text.rpartition("/")[0]
    return group, whole.at("kind").text, meta.at("namespace").text, meta.at("name").text
