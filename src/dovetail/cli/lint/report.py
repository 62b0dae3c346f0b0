# SPDX-License-Identifier: Apache-2.0
"""The output formats of `dovetail lint`.

`text` is for people. SARIF 2.1.0 (OASIS) is for code hosts, which show findings beside a change; JUnit's XML is for CI
servers, which show them as tests; `github` are workflow commands of GitHub Actions.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

import click
from msgspec import Struct

from dovetail import __version__
from dovetail.advice.lint.engine import UNREADABLE, LintFinding
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import templates_of
from dovetail.advice.lint.rule import Rule, Severity
from dovetail.advice.lint.rules.gangs import GROUPS
from dovetail.cli.manifest_files import shown_name
from dovetail.cli.output import count, printable, versioned
from dovetail.kube.manifests.templates import group_kind, holds_templates

_PLURALS = {Severity.INFO: "info"}
_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "blue"}
_SARIF_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_GITHUB_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
SHOW_FIXES = frozenset({"text", "json"})
"""The formats that name the fixable findings."""
_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


class ReportedFinding(Struct, frozen=True):
    """A finding as it is in JSON. `line` and `column` count from 1; both are 0 for the whole file. `guess`: it may be
    wrong, as no nodes are known. `patch` is a JSON patch (RFC 6902) of the document. `template` is the file of the Helm
    template, "" if the document is not the output of `helm template`, and `template_line` the line of that output."""

    rule: str
    level: Severity
    file: str
    line: int
    column: int
    object: str
    path: str
    message: str
    effect: str
    guess: bool
    fixable: bool
    patch: tuple[dict[str, Any], ...]
    template: str
    template_line: int


class LintReport(Struct, frozen=True):
    """The findings of a run. `rules` are the rules that were applied; findings of the levels `fatal` make it fail.
    `left_out` are lines about what was not checked, or not reported."""

    findings: tuple[LintFinding, ...]
    files: tuple[str, ...]
    objects: tuple[Field, ...]
    rules: tuple[Rule, ...]
    fatal: frozenset[Severity]
    left_out: tuple[str, ...] = ()


def as_text(report: LintReport) -> str:
    lines, explained_rules = [], set()
    for one in report.findings:
        level = click.style(one.level.value, _COLOURS[one.level], bold=True)
        guess = " (a guess: facts of the cluster are missing)" if one.guess else ""
        where = f"{one.object}: {one.path}: " if one.path else ""
        lines.append(f"{_place(one)}: {level} {one.rule}: {printable(where + one.message)}{guess}")
        template, line = one.rendered_from
        if template:
            lines.append(f"    template: {template}, line {line} of what it renders")
        if one.rule not in explained_rules:
            lines.append(f"    effect: {one.effect}")
        explained_rules.add(one.rule)
        lines += [f"    patch: {json.dumps(step, ensure_ascii=False)}" for step in one.patch]
    return "\n".join([*lines, *_summary(report)]) + "\n"


def counted(findings: Iterable[LintFinding | ReportedFinding]) -> str:
    """`2 errors, 1 warning`, or `no finding`."""
    found = Counter(one.level for one in findings)
    parts = (count(found[level], level.value, _PLURALS.get(level, "")) for level in Severity if found[level])
    return ", ".join(parts) or "no finding"


def _summary(report: LintReport) -> list[str]:
    objects, files = count(len(report.objects), "object"), count(len(report.files), "file")
    lines = [f"{counted(report.findings)} in {objects} of {files}"]
    fixable = sum(one.fixable for one in report.findings)
    if fixable:
        lines.append(f"--fix fixes {fixable} of them; --diff shows how")
    return [*lines, *report.left_out]


def unchecked(objects: Iterable[Field]) -> Iterator[str]:
    """A line with the kinds that no rule reads, if there are any."""
    unknown = Counter(_kind(whole) for whole in objects if not _known(whole))
    if unknown:
        yield "not checked: " + ", ".join(f"{kind} ({number})" for kind, number in sorted(unknown.items()))


def _known(whole: Field) -> bool:
    """Whether rules apply to the object: a kind of Kubernetes or of Dovetail, a PodGroup, a kind with pod templates, a
    configuration of NVIDIA's MIG manager or device plugin, or an object with something like a pod template."""
    group, kind = group_kind(whole.value)
    own = kind and ("." not in group or group.endswith((".k8s.io", "dovetail.dev")))
    configures_nvidia = bool(whole.at("mig-configs") or whole.at("sharing"))
    known = bool(own) or (group, kind) in GROUPS or configures_nvidia
    return known or holds_templates(whole.value) or any(templates_of(whole))


def _kind(whole: Field) -> str:
    group, kind = group_kind(whole.value)
    return f"{kind}.{group}" if kind and group else kind or "a document without apiVersion and kind"


def reported(one: LintFinding) -> ReportedFinding:
    return ReportedFinding(
        one.rule, one.level, shown_name(one.file), one.line, one.column, one.object, one.path, one.message, one.effect,
        one.guess, one.fixable, one.patch, *one.rendered_from,
    )  # fmt: skip


def as_json(report: LintReport) -> str:
    found = [reported(one) for one in report.findings]
    return json.dumps(versioned("LintFinding", found), indent=2, ensure_ascii=False) + "\n"


def as_sarif(report: LintReport) -> str:
    rules: list[dict[str, Any]] = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.effect},
            "defaultConfiguration": {"level": _SARIF_LEVELS[rule.level]},
        }
        for rule in report.rules
    ]
    if any(one.rule == UNREADABLE for one in report.findings):
        rules.insert(0, {"id": UNREADABLE, "shortDescription": {"text": "Cannot be checked"}})
    index = {rule["id"]: at for at, rule in enumerate(rules)}
    results = []
    for one in report.findings:
        place: dict[str, Any] = {"artifactLocation": {"uri": quote(os.fsencode(one.file))}}
        if one.line:
            place["region"] = {"startLine": one.line, "startColumn": max(one.column, 1)}
        location: dict[str, Any] = {"physicalLocation": place}
        if one.path:
            location["logicalLocations"] = [{"fullyQualifiedName": f"{one.object}: {one.path}"}]
        results.append(
            {
                "ruleId": one.rule,
                "ruleIndex": index[one.rule],
                "level": _SARIF_LEVELS[one.level],
                "message": {"text": f"{one.message}. {one.effect}"},
                "locations": [location],
            }
        )
    driver = {"name": "dovetail lint", "version": __version__, "rules": rules}
    runs = [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}]
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": runs}, indent=2, ensure_ascii=False) + "\n"


def as_junit(report: LintReport) -> str:
    """One suite per file, one test per finding. The test of a fatal finding fails; that of another finding passes and
    has the finding as its output. A file without findings is one test that passes."""
    # Imported here: most runs write another format.
    import xml.etree.ElementTree as ET

    root = ET.Element("testsuites", name="dovetail lint")
    by_file: dict[str, list[LintFinding]] = {printable(shown_name(file)): [] for file in report.files}
    for one in report.findings:
        by_file[printable(shown_name(one.file))].append(one)
    for file, found in by_file.items():
        failed = sum(one.level in report.fatal for one in found)
        suite = ET.SubElement(root, "testsuite", name=file, tests=str(len(found) or 1), failures=str(failed))
        for one in found:
            name = printable(f"{one.rule} {one.object} {one.path}".rstrip())
            message = printable(one.message)
            case = ET.SubElement(suite, "testcase", name=name, classname=file, file=file, line=str(one.line))
            text = f"{_place(one)}: {message}\n{one.effect}"
            if one.level in report.fatal:
                ET.SubElement(case, "failure", type=one.level.value, message=message).text = text
            else:
                ET.SubElement(case, "system-out").text = f"{one.level.value}: {text}"
        if not found:
            ET.SubElement(suite, "testcase", name="no finding", classname=file, file=file)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def as_github(report: LintReport) -> str:
    lines = []
    for one in report.findings:
        place = f"file={_property(shown_name(one.file))}" + (
            f",line={one.line},col={max(one.column, 1)}" if one.line else ""
        )
        text = f"{one.object}: {one.path}: {one.message}. {one.effect}" if one.path else f"{one.message}. {one.effect}"
        lines.append(f"::{_GITHUB_LEVELS[one.level]} {place},title={one.rule}::{_data(text)}\n")
    return "".join(lines)


def _data(text: str) -> str:
    """Escaped as https://github.com/actions/toolkit does: packages/core/src/command.ts, escapeData."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escaped as escapeProperty does, in the same file."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _place(one: LintFinding) -> str:
    file = printable(shown_name(one.file))
    return f"{file}:{one.line}:{one.column}" if one.line else file


def explained(rule: Rule) -> str:
    """The rule as text: level, fix, policy, source, effect, and examples."""
    # Imported here: the expressions are needed for nothing else than policies.
    from dovetail.advice.lint.policies import extent

    fix = "--fix" if rule.fixable else "by hand"
    nodes = "\nnodes:   exact only with --inventory or --cluster" if rule.needs_nodes else ""
    source = f"\nsource:  {rule.source}" if rule.source else ""
    return (
        f"{rule.id}: {rule.title}\nlevel:   {rule.level.value}\nfix:     {fix}\npolicy:  "
        f"{extent(rule.id)}{nodes}{source}\n\n{rule.effect}\n\n"
        f"Wrong:\n\n{_indented(rule.bad)}\nRight:\n\n{_indented(rule.good)}"
    )


def _indented(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))


WRITERS: dict[str, Callable[[LintReport], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
    "junit": as_junit,
    "github": as_github,
}
