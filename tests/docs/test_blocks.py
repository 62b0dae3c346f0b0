# SPDX-License-Identifier: Apache-2.0
"""What the pages show works: links lead somewhere, objects are taken, commands and their options exist."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from itertools import chain
from typing import Any
from unittest import mock

import click
import msgspec
import pytest
import yaml

from dovetail.cli import cli
from dovetail.core.events import GangChanged, PodChanged
from dovetail.core.model import Problem
from dovetail.kube.api.reflector import Change
from dovetail.kube.api.resources import Resource
from dovetail.kube.gangs import declared as gangs
from dovetail.kube.gangs import owners
from dovetail.kube.gangs.dialects import DIALECTS
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.annotations import options_of
from dovetail.kube.translate.translator import Translator
from tests.docs.pages import AT_THE_ROOT, REFUSED, Block, Page, every_page, page
from tests.paths import ROOT
from tools.prometheus.server import Prometheus

Document = dict[str, Any]
BLOCKS = [block for found in every_page() for block in found.blocks]
YAML = [block for block in BLOCKS if block.language == "yaml"]
COMMANDS = [
    pytest.param(command, id=command[:60])
    for block in BLOCKS
    if block.language in ("console", "sh")
    for command, _ in (block.commands or [(line, []) for line in block.text.splitlines()])
]


@pytest.mark.parametrize("name", [found.name for found in every_page()])
def test_links_lead_somewhere(name: str) -> None:
    here = page(name)
    for link in here.links:
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        path = (here.path.parent / target).resolve() if target else here.path
        assert path.exists(), link
        assert not anchor or anchor in page(str(path.relative_to(ROOT))).anchors, link


def test_every_page_is_in_the_index() -> None:
    index = page("docs/index.md")
    linked = {(index.path.parent / link.partition("#")[0]).resolve() for link in index.links}
    assert {found.path for found in every_page()} - linked == {index.path, ROOT / "README.md"}


def named(where: Page) -> Iterator[str]:
    """The paths of the repository that a page names: in code spans, and as arguments of its commands."""
    spans = re.findall(r"`([^`\n]+)`", where.prose)
    lines = [line for block in where.blocks for line, _ in block.commands]
    for word in chain.from_iterable(map(str.split, [*spans, *lines])):
        if re.match(r"(src|tests|docs|deploy|tools|benchmarks)/", word):
            yield word


@pytest.mark.parametrize("name", AT_THE_ROOT)
def test_paths_exist(name: str) -> None:
    missing = [path for path in named(page(name)) if not (ROOT / path).exists()]
    assert not missing


def test_contributing_names_paths_and_targets() -> None:
    contributing = page("CONTRIBUTING.md")
    assert len(set(named(contributing))) > 50
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {word.split()[1] for word in re.findall(r"`(make [a-z]+)`", contributing.prose)} <= targets


def test_modules_of_the_glossary_exist() -> None:
    """A renamed module is removed there."""
    modules = [span for row in page("docs/glossary.md").rows("term") for span in row.code[3]]
    assert len(modules) > 30
    assert not [module for module in modules if not (ROOT / "src/dovetail" / module).exists()]


def test_the_readme_begins_with_the_demo_and_the_tests() -> None:
    shown = [block for block in page("README.md").blocks if block.language in ("sh", "console")]
    assert [block.text.strip() for block in shown[:2]] == ["make demo", "make test"]


def documents(block: Block) -> Iterator[Document]:
    for document in yaml.safe_load_all(block.text):
        yield from document["items"] if document["kind"] == "List" else [document]


def pods(document: Document, name: str) -> Iterator[Document]:
    """The pods that an object makes: itself, or one for each pod template inside of it."""
    if isinstance(document.get("spec"), dict) and "containers" in document["spec"]:
        meta = {"name": name, "namespace": "default", "uid": f"{name}-uid"} | document.get("metadata", {})
        yield {"metadata": meta, "spec": document["spec"]}
        return
    for key, value in document.items():
        parts = value if isinstance(value, list) else [value]
        for number, part in enumerate(parts):
            if isinstance(part, dict):
                yield from pods(part, f"{name}-{key}-{number}".lower())


def problems(block: Block) -> list[Problem]:
    """The problems of the block's objects for Dovetail."""
    feed, events = Translator(), []
    found: list[Problem | None] = []
    for document in documents(block):
        document.setdefault("metadata", {}).setdefault("namespace", "default")
        text = json.dumps(document)
        for dialect in DIALECTS:
            if _is(document, *dialect.resources):
                group = msgspec.json.decode(text, type=dialect.kind)
                events += feed.gangs.pod_groups(dialect, [Change("added", group)])
        for kind in owners.OWNER_KINDS:
            if _is(document, kind.resource):
                found += declared(kind.resource, document)
        for pod in pods(document, document["metadata"]["name"]):
            events += feed.pods([Change("added", msgspec.convert(pod, Pod))])
            assert pod["spec"]["schedulerName"] == "dovetail"
    found += [e.pod.problem for e in events if isinstance(e, PodChanged)]
    found += [e.gang.problem for e in events if isinstance(e, GangChanged)]
    return [problem for problem in found if problem is not None]


def _is(document: Document, *resources: Resource) -> bool:
    return any((document["apiVersion"], document["kind"]) == (r.api_version, r.kind) for r in resources)


def declared(resource: Resource, document: Document) -> list[Problem | None]:
    name = document["metadata"]["name"]
    member = gangs.Membership("id", "default", name)
    declared = owners.declare(member, owners.read(gangs.OwnerRef(resource, "default", name), document))
    assert declared is not None, "the pods of the object are on their own"
    options = options_of(msgspec.convert(document["metadata"], ObjectMeta))
    return [gang.problem for gang in gangs.records(declared, {options})]


@pytest.mark.parametrize("block", YAML, ids=lambda b: f"{b.page}:{b.text.count(chr(10))}")
def test_objects_are_taken_as_they_are_written(block: Block) -> None:
    if block.before == REFUSED:
        assert problems(block)
    else:
        assert problems(block) == []


def test_what_a_refused_object_gets() -> None:
    where = page("docs/how-to/why-pending.md")
    bad = next(block for block in where.blocks if block.before == REFUSED)
    documented = where.blocks[where.blocks.index(bad) + 1].text
    assert str(problems(bad)[0]) in " ".join(documented.split())


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_exist(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0].rpartition("/")[2] == "dovetail":
        parsed: click.Command | None = cli
        ends = [words.index(mark) for mark in ("|", ">", "--") if mark in words]
        own = words[1 : min(ends, default=None)]
        while isinstance(parsed, click.Group) and not (parsed.invoke_without_command and (not own or own[0][0] == "-")):
            verb = parsed.get_command(click.Context(parsed), own[0])
            if verb is None and parsed.invoke_without_command:
                break  # An argument stands there, as in `dovetail queue research`.
            parsed = verb
            own.pop(0)
        assert parsed is not None
        known = {name for p in parsed.params for name in (*p.opts, *p.secondary_opts)}
        assert {word.partition("=")[0] for word in own if re.match("--?[a-z]", word)} <= known


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "command"),
    [
        ("The core alone", ["benchmarks/core_speed.py"]),
        ("The predicted kubelet", ["benchmarks/kubelet_speed.py"]),
        ("Devices by claim", ["benchmarks/claims_speed.py"]),
        ("Selectors", ["benchmarks/cel_speed.py"]),
        ("Imports of a network", ["-m", "benchmarks.fabric_import"]),
        ("The linter", ["benchmarks/lint_speed.py"]),
        ("Policies of the linter", ["-m", "benchmarks.lint_policies"]),
        ("Costs", ["benchmarks/cost.py"]),
        ("Queues", ["benchmarks/queues_speed.py"]),
        ("The start of a command", ["-m", "benchmarks.start_speed"]),
        ("The operator", ["-m", "benchmarks.operator_speed"]),
        ("Planes", ["-m", "benchmarks.planes"]),
        ("Idle agents", ["-m", "benchmarks.idle_agents"]),
        ("Carried planes", ["-m", "benchmarks.carried_planes"]),
        ("Starvation", ["benchmarks/starvation.py"]),
        ("Agents", ["benchmarks/agents.py"]),
        ("Agents on a cluster", ["-m", "benchmarks.agents_live"]),
        ("Leases under kill -9", ["-m", "benchmarks.lease_kills"]),
        ("Philly", ["benchmarks/philly.py"]),
        ("Recording and replay", ["benchmarks/replay_speed.py"]),
        ("Packing", ["benchmarks/packing.py"]),
        ("Churn", ["benchmarks/churn.py"]),
        ("MIG", ["benchmarks/mig_packing.py"]),
        ("Topology", ["benchmarks/topology.py"]),
        ("Churn on a real kubelet", ["benchmarks/node_churn.py"]),
        ("Live, beside kube-scheduler", ["-m", "benchmarks.live"]),
    ],
)
def test_options_of_the_benchmarks(section: str, command: list[str]) -> None:
    shown = _help(command).partition("options:")[2]
    rows = page("docs/how-to/benchmarks.md").section(section).rows("option")
    heads = re.findall(r"^  (-.+?)(?:  |$)", shown, re.MULTILINE)
    parsed = {flag for head in heads for flag in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", head)}
    assert {option for row in rows for option in row.code[0]} == parsed - {"-h", "--help"}


def _help(command: list[str]) -> str:
    """What it prints with --help; run in this process, as each new one imports all of the core."""
    with ExitStack() as around:
        around.enter_context(mock.patch.object(sys, "argv", [command[-1], "--help"]))
        printed = around.enter_context(redirect_stdout(StringIO()))
        ended = around.enter_context(pytest.raises(SystemExit))
        if command[0] == "-m":
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(ROOT / command[0]), run_name="__main__")
    assert not ended.value.code
    return printed.getvalue()


async def test_the_example_of_a_test_passes() -> None:
    blocks = [block for block in page("docs/how-to/tests.md").blocks if block.language == "python"]
    names: dict[str, Any] = {}
    exec(blocks[0].text, names)
    await next(value for name, value in names.items() if name.startswith("test_"))()


@pytest.mark.plane
def test_the_example_with_prometheus_passes(prometheus_factory: Callable[..., Prometheus]) -> None:
    block = page("docs/how-to/tests.md").section("On a real Prometheus").blocks[0]
    names: dict[str, Any] = {}
    exec(block.text, names)
    names["test_a_target_that_is_away_is_down"](prometheus_factory)
