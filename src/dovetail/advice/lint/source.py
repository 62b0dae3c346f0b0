# SPDX-License-Identifier: Apache-2.0
"""The text of manifests: documents with the position of every field, and read errors.

Rules
- Files are split at lines that begin with `---`, so that an invalid document does not affect the others.
- A manifest in the text of an Argo workflow (`resource.manifest`) is an object of its own, with the lines that it has
  in the file. One that cannot be read before Argo fills it in is left out.
- Everything is read as YAML, which includes JSON, so that every field has a line and a column.
- A template that was not rendered (Helm, Jinja, ERB) has an error of its own, also a Helm template that is valid YAML.
- `helm template` names the file of the template in the comment with which each document begins. It does not state lines
  of the template, only the lines of what it made of it are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import yaml
from msgspec import Struct
from msgspec.structs import replace

from dovetail.advice.lint.field import Field, Path
from dovetail.advice.lint.tree import FieldPlace, place
from dovetail.kube.manifests.documents import ManifestError, not_yaml
from dovetail.kube.yaml_text import read_yaml

MAX_BYTES = 32 * 2**20
_BOUNDARY = re.compile(r"\n---(?=\s|\Z)")
_ONLY_DIRECTIVES = re.compile(r"(?:[^\S\n]*(?:[%#][^\n]*)?\n)*[^\S\n]*(?:[%#][^\n]*)?\Z")
_HELM = re.compile(r"\{\{-?\s*(?:\.Values|\.Release|\.Chart|\.Capabilities|include\s|tpl\s|template\s|define\s)")
_HELM_SOURCE = re.compile(r"\A(?:---[^\n]*\n)?# Source: ([^\n]*)\n")
_OF_CHARTS = ("/templates/", "/crds/")
"""Folders of a chart, one of which is in the name. Source: https://github.com/helm/helm: pkg/cmd/template.go."""
_WRAPPER = "AppWrapper"
"""https://github.com/project-codeflare/appwrapper: its components are the objects that it makes."""
_WORKFLOWS = frozenset({"Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow"})
"""https://github.com/argoproj/argo-workflows: ResourceTemplate of pkg/apis/workflow/v1alpha1/workflow_types.go."""
_BRACES = re.compile(r"\{\{|\{%|<%")


class Unreadable(Exception):
    """A document that cannot be read. `line` and `column` count from 1; 0 means the whole document."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message, line, column)
        self.message, self.line, self.column = message, line, column


class NotRendered(Unreadable):
    """A template of a document."""


class SourceDocument(Struct, frozen=True, dict=True):
    """One YAML document of a file: its text with the lines before it, the line of the file at which the text begins,
    and the value. If it cannot be read, `error` is set, without a value."""

    file: str
    text: str
    first_line: int
    value: Any = None
    error: Unreadable | None = None

    def objects(self) -> tuple[Field, ...]:
        """The object of the document, or the items of its list."""
        return self._objects

    @cached_property
    def _objects(self) -> tuple[Field, ...]:
        return tuple(_flat(Field(self.value)))

    def position(self, path: Path) -> tuple[int, int]:
        """(line, column), from 1, of the key or item of a field, or of its nearest existing ancestor."""
        at = place(self.text, path)
        if at is None:
            return self.first_line, 1
        if at.rest:
            return self._position_inside(at)
        return self.first_line + at.line, at.column + 1

    def _position_inside(self, outer: FieldPlace) -> tuple[int, int]:
        """The position of a field of a manifest that is the literal text at this place."""
        first = self.first_line + outer.line + 1
        line, column = SourceDocument(self.file, outer.text, first).position(outer.rest)
        indent = len(_line(self.text, line - self.first_line)) - len(_line(outer.text, line - first))
        return line, max(column + indent, 1)

    def holds(self, path: Path) -> bool:
        """Whether the object at this path is one of the document, and not a manifest in a text of it."""
        return not isinstance(Field(self.value).at(*path).value, str | None)

    def rendered_from(self, line: int) -> tuple[str, int]:
        """Of a document that `helm template` printed: the file of the template, and which line of what was rendered
        from it is this `line` of the file, from 1. ("", 0) for another document."""
        found = _HELM_SOURCE.match(self.text)
        if found is None or not any(folder in found[1] for folder in _OF_CHARTS):
            return "", 0
        return found[1].strip(), max(line - self.first_line - found[0].count("\n") + 1, 1)


def too_large(size: int) -> Unreadable:
    """The error of a file with more than MAX_BYTES."""
    return Unreadable(
        f"{size / 2**20:.0f} MiB is too large: files up to {MAX_BYTES >> 20} MiB are checked; split it, or leave it out"
    )


def decoded(data: bytes) -> str:
    """The text of a file. Raises Unreadable if it is not text, or too large for a manifest."""
    if len(data) > MAX_BYTES:
        raise too_large(len(data))
    if b"\0" in data[:4096]:
        raise Unreadable("is a binary file, no manifest")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"is not UTF-8 text: {error.reason}", line) from error


def documents(file: str, text: str) -> Iterator[SourceDocument]:
    """All documents of a file's text, in order, including empty ones. Their joined texts equal the text."""
    for part, line in _parts(text):
        yield document(file, part, line)


def document(file: str, text: str, first_line: int) -> SourceDocument:
    """One document, parsed from its text."""
    bare = SourceDocument(file, text, first_line)
    template = _HELM.search(text)
    if template is not None:
        return replace(bare, error=_not_rendered(text, template, first_line))
    try:
        return SourceDocument(file, text, first_line, read_yaml(text))
    except yaml.YAMLError as error:
        template = _BRACES.search(text)
        if template is not None:
            return replace(bare, error=_not_rendered(text, template, first_line))
        return replace(bare, error=_broken(error, file, first_line))


def _parts(text: str) -> Iterator[tuple[str, int]]:
    """(text, line of the file at which it begins) of each document."""
    cuts = [0, *(found.end() - len("---") for found in _BOUNDARY.finditer(text)), len(text)]
    start, line = 0, 1
    for end in cuts[1:]:
        part = text[start:end]
        # Comments and directives before the first `---` belong to the document after it.
        if end < len(text) and _ONLY_DIRECTIVES.match(part):
            continue
        yield part, line
        start, line = end, line + part.count("\n")


def _flat(field: Field) -> Iterator[Field]:
    kind = field.at("kind").text
    wrapped = list(field.at("spec", "components").each()) if kind == _WRAPPER else []
    if wrapped:
        yield from (inner for one in wrapped for inner in _flat(one.at("template")))
        return
    if kind in _WORKFLOWS:
        yield field
        yield from _in_workflow(field)
        return
    items = field.at("items")
    if not (kind.endswith("List") and isinstance(items.value, list)):
        if field:
            yield field
        return
    typed = {"apiVersion": field.at("apiVersion").value, "kind": kind.removesuffix("List")} if kind != "List" else {}
    for item in items.each():
        yield from _flat(replace(item, value=typed | item.value) if isinstance(item.value, dict) else item)


def _line(text: str, number: int) -> str:
    """A line, from 0; "" where YAML counts more lines, as there are rarer breaks."""
    lines = text.split("\n")
    return lines[number] if number < len(lines) else ""


def _in_workflow(workflow: Field) -> Iterator[Field]:
    spec = workflow.at("spec", "workflowSpec") or workflow.at("spec")
    for template in spec.at("templates").each():
        manifest = template.at("resource", "manifest")
        try:
            value = read_yaml(manifest.text)
        except yaml.YAMLError:
            continue
        if isinstance(value, dict):
            yield from _flat(Field(value, manifest.path))


def _not_rendered(text: str, found: re.Match[str], first_line: int) -> NotRendered:
    line = text.count("\n", 0, found.start())
    column = found.start() - (text.rfind("\n", 0, found.start()) + 1)
    message = "is a template that was not rendered: for Helm, `helm template CHART | dovetail lint -`"
    return NotRendered(message, first_line + line, column + 1)


def _broken(error: yaml.YAMLError, file: str, first_line: int) -> Unreadable:
    mark = error.problem_mark or error.context_mark if isinstance(error, yaml.MarkedYAMLError) else None
    line, column = (first_line + mark.line, mark.column + 1) if mark is not None else (first_line, 1)
    problem: ManifestError = not_yaml(error, file)
    return Unreadable(problem.message, line, column)
