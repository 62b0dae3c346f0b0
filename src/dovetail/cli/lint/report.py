# SPDX-License-Identifier: Apache-2.0
"""What `dovetail lint` prints: for people, and for what reads it in a pipeline.

SARIF 2.1.0 (OASIS) is what code hosts show beside a change; JUnit's XML what CI servers show as tests; `github` are the
workflow commands of GitHub Actions.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from typing import Any

import click
from msgspec import Struct

from dovetail import __version__
from dovetail.advice.lint.engine import UNREADABLE, LintFinding
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.rule import Rule, Severity
from dovetail.kube.manifests.templates import group_kind, holds_templates, templates

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "blue"}
_SARIF_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_GITHUB_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


class LintReport(Struct, frozen=True):
    """`rules` are those that were asked; findings of the levels `fatal` make the run fail."""

    findings: tuple[LintFinding, ...]
    files: tuple[str, ...]
    objects: tuple[Field, ...]
    rules: tuple[Rule, ...]
    fatal: frozenset[Severity]


def as_text(report: LintReport) -> str:
    lines, told = [], set()
    for one in report.findings:
        level = click.style(one.level.value, _COLOURS[one.level], bold=True)
        guess = " (a guess: too little is known of the cluster)" if one.guess else ""
        where = f"{one.object}: {one.path}: " if one.path else ""
        lines.append(f"{_place(one)}: {level} {one.rule}: {where}{one.message}{guess}")
        if one.rule not in told:
            lines.append(f"    if not: {one.effect}")
        told.add(one.rule)
        lines += [f"    mend: {json.dumps(step, ensure_ascii=False)}" for step in one.patch]
    return "\n".join([*lines, *_summary(report)]) + "\n"


def _summary(report: LintReport) -> list[str]:
    found = Counter(one.level for one in report.findings)
    counts = ", ".join(_count(found[level], level.value) for level in Severity if found[level]) or "no finding"
    objects, files = _count(len(report.objects), "object"), _count(len(report.files), "file")
    lines = [f"{counts} in {objects} of {files}"]
    mendable = sum(one.fixable for one in report.findings)
    if mendable:
        lines.append(f"{mendable} of them {'is' if mendable == 1 else 'are'} mended by --fix; --diff shows how")
    unknown = Counter(_kind(whole) for whole in report.objects if not _known(whole))
    if unknown:
        lines.append("not looked at: " + ", ".join(f"{kind} ({number})" for kind, number in sorted(unknown.items())))
    return lines


def _known(whole: Field) -> bool:
    """Whether rules can say something of it: Kubernetes' own kinds and ours, those of the table, files of NVIDIA's MIG
    manager and device plugin, and what looks like a pod."""
    group, kind = group_kind(whole.value)
    own = kind and ("." not in group or group.endswith((".k8s.io", "dovetail.dev")))
    configures_nvidia = bool(whole.at("mig-configs") or whole.at("sharing"))
    return bool(own) or configures_nvidia or holds_templates(whole.value) or any(templates(whole.value))


def _kind(whole: Field) -> str:
    group, kind = group_kind(whole.value)
    return f"{kind}.{group}" if kind and group else kind or "a document without apiVersion and kind"


def as_json(report: LintReport) -> str:
    found = [
        {
            "rule": one.rule,
            "level": one.level.value,
            "file": one.file,
            "line": one.line,
            "column": one.column,
            "object": one.object,
            "path": one.path,
            "message": one.message,
            "effect": one.effect,
            "guess": one.guess,
            "fixable": one.fixable,
            "patch": list(one.patch),
        }
        for one in report.findings
    ]
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


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
        rules.insert(0, {"id": UNREADABLE, "shortDescription": {"text": "Cannot be looked at"}})
    index = {rule["id"]: at for at, rule in enumerate(rules)}
    results = []
    for one in report.findings:
        place: dict[str, Any] = {"artifactLocation": {"uri": one.file.replace("\\", "/")}}
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
    """A suite for each file. A finding that makes the run fail is a test that failed, another one that passed and
    printed something; a file without findings is one test that passed."""
    root = ET.Element("testsuites", name="dovetail lint")
    for file in report.files:
        found = [one for one in report.findings if one.file == file]
        failed = sum(one.level in report.fatal for one in found)
        suite = ET.SubElement(root, "testsuite", name=file, tests=str(len(found) or 1), failures=str(failed))
        for one in found:
            name = f"{one.rule} {one.object} {one.path}".rstrip()
            case = ET.SubElement(suite, "testcase", name=name, classname=file, file=file, line=str(one.line))
            text = f"{_place(one)}: {one.message}\n{one.effect}"
            if one.level in report.fatal:
                ET.SubElement(case, "failure", type=one.level.value, message=one.message).text = text
            else:
                ET.SubElement(case, "system-out").text = f"{one.level.value}: {text}"
        if not found:
            ET.SubElement(suite, "testcase", name="no finding", classname=file, file=file)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def as_github(report: LintReport) -> str:
    lines = []
    for one in report.findings:
        place = f"file={_property(one.file)}" + (f",line={one.line},col={max(one.column, 1)}" if one.line else "")
        text = f"{one.object}: {one.path}: {one.message}. {one.effect}" if one.path else f"{one.message}. {one.effect}"
        lines.append(f"::{_GITHUB_LEVELS[one.level]} {place},title={one.rule}::{_data(text)}\n")
    return "".join(lines)


def _data(text: str) -> str:
    """https://github.com/actions/toolkit: packages/core/src/command.ts, escapeData."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """The same, escapeProperty."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _place(one: LintFinding) -> str:
    return f"{one.file}:{one.line}:{one.column}" if one.line else one.file


def _count(number: int, what: str) -> str:
    return f"{number} {what if number == 1 or what == Severity.INFO.value else what + 's'}"


def explained(rule: Rule) -> str:
    """All that its entry says."""
    mends = "yes, by --fix" if rule.fixable else "by hand"
    nodes = "\nnodes:   needed to be exact: give --inventory or --cluster" if rule.needs_nodes else ""
    source = f"\nsource:  {rule.source}" if rule.source else ""
    return (
        f"{rule.id}: {rule.title}\nlevel:   {rule.level.value}\nmended:  {mends}{nodes}{source}\n\n{rule.effect}\n\n"
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
