# SPDX-License-Identifier: Apache-2.0
"""The reference names everything that the code has, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, cast, get_args

import click
import pytest
import yaml
from msgspec.structs import fields
from prometheus_client.metrics import MetricWrapperBase

from dovetail.agent import endpoints as agent_endpoints
from dovetail.agent import metrics as vitals
from dovetail.agent.health import watched, xids
from dovetail.agent.health.health import Unhealthy
from dovetail.agent.health.xids import ACTIONS
from dovetail.agent.machine.host import Host
from dovetail.agent.plugin.plugins import Counts
from dovetail.agent.publish.publisher import NodeFacts
from dovetail.agentplanes import metrics as plane_metrics
from dovetail.agentplanes import probes
from dovetail.cli import cli
from dovetail.cli.history_columns import HistoryJob, HistoryPod
from dovetail.core.fabric import DEFAULT_FABRIC
from dovetail.core.policy import Policy
from dovetail.core.reasons import Reason
from dovetail.cost.idle_pods import IdleList, IdleRow
from dovetail.history.collector import endpoints as collector_endpoints
from dovetail.history.collector import metrics as collector_metrics
from dovetail.history.records import Outcome
from dovetail.idlepolicy import metrics as idle_metrics
from dovetail.idlepolicy import run as idle_policy
from dovetail.kube import probe_server
from dovetail.kube.gangs.dialects import DIALECTS
from dovetail.kube.gangs.owners import OWNER_KINDS
from dovetail.kube.objects.views import VIEWS
from dovetail.kube.translate.annotation_values import LEVELS
from dovetail.kube.translate.annotations import PREFIX, TABLE, WRITTEN_BY_US
from dovetail.operator import endpoints as operator_endpoints
from dovetail.operator import metrics as operator_metrics
from dovetail.playground import EXIT_CODE, GPU_LOAD, LOG, RUN_SECONDS
from dovetail.replicas import metrics as replica_metrics
from dovetail.scheduler import endpoints, metrics
from dovetail.scheduler.serve import SchedulerOptions
from dovetail.sim import report
from dovetail.sim.policies import POLICIES
from dovetail.sleeping import metrics as turn_metrics
from dovetail.topology.fabric import FINDING_KINDS
from dovetail.views.lease_types import LeaseRow, PlaneRow, RequestRow
from dovetail.views.why_types import Why, WhyLease, WhyRequest
from dovetail.viewserver.answers import NAMED, POSTED
from tests.docs.pages import Row, page
from tests.paths import ROOT


def commands(group: click.Group, prefix: str = "") -> Iterator[str]:
    """`agent`, `agent inspect`: all of them, with those of groups below."""
    for name in group.list_commands(click.Context(group)):
        yield prefix + name
        below = group.get_command(click.Context(group), name)
        if isinstance(below, click.Group):
            yield from commands(below, f"{prefix}{name} ")


COMMANDS = list(commands(cli))


def reference(name: str, head: str, section: str = "") -> list[Row]:
    """Rows of the tables of a reference page (or of one section of it) whose first column has this heading."""
    found = page(f"docs/reference/{name}.md")
    return (found.section(section) if section else found).rows(head)


def first(rows: Iterable[Row]) -> list[str]:
    """The code spans of the first column."""
    return [span for row in rows for span in row.code[0]]


def command(name: str) -> click.Command:
    found: click.Command | None = cli
    for part in name.split():
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), part)
    assert found is not None
    return found


def test_the_page_of_commands_begins_with_all_of_them() -> None:
    first_paragraph = page("docs/reference/cli.md").path.read_text().split("\n\n")[1]
    assert re.findall(r"\[([a-z-]+)\]\(#dovetail-", first_paragraph) == sorted(
        name for name in COMMANDS if " " not in name
    )


def test_findings_of_fabrics() -> None:
    rows = reference("cli", "finding", "dovetail fabric check")
    assert {row.code[0][0]: row.cells[1] for row in rows} == {
        code: "error" if kind.is_error else "warning" for code, kind in FINDING_KINDS.items()
    }


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_options(name: str) -> None:
    own = page("docs/reference/cli.md").section(f"dovetail {name}".strip())
    written = {option: row.code[1] for row in own.rows("option") for option in row.code[0]}
    parsed = [p for p in command(name).params if isinstance(p, click.Option)]
    known = {option: p for p in parsed for option in (*p.opts, *p.secondary_opts)}
    assert written.keys() - {"-h", "--help"} == known.keys()
    for option, p in known.items():
        if p.show_default:
            assert written[option] == [str(p.default)], option


def test_every_command_has_a_section() -> None:
    sections = {anchor for anchor in page("docs/reference/cli.md").anchors if anchor.startswith("dovetail")}
    assert sections == {"dovetail", *(f"dovetail-{name.replace(' ', '-')}" for name in COMMANDS)}


def test_fields_of_the_json_answer() -> None:
    assert first(reference("cli", "field", "dovetail why")) == [field.encode_name for field in fields(Why)]
    for what, kind in (("request", WhyRequest), ("lease", WhyLease)):
        assert first(reference("cli", f"field of a {what}", "dovetail why")) == [one.name for one in fields(kind)]
    for what, kind in (("leases", LeaseRow), ("requests", RequestRow), ("planes", PlaneRow)):
        listed = [name for row in reference("cli", f"field of `{what}`", "dovetail leases") for name in row.code[0]]
        assert listed == [one.encode_name for one in fields(kind)]


def test_fields_of_idle_pods() -> None:
    for what, kind in (("field", IdleList), ("field of `pods`", IdleRow)):
        listed = [name for row in reference("cli", what, "dovetail idle") for name in row.code[0]]
        assert sorted(listed) == sorted(one.encode_name for one in fields(kind))


def test_the_history() -> None:
    for heading, kind in (("field", HistoryJob), ("field of `steps`", HistoryPod)):
        listed = [name for row in reference("cli", heading, "dovetail history") for name in row.code[0]]
        assert sorted(listed) == sorted(one.encode_name for one in fields(kind))
    assert ["", *first(reference("history", "outcome"))] == list(get_args(Outcome))
    assert first(reference("history", "path")) == list(collector_endpoints.PATHS)
    kept = {option for row in reference("history", "kept") for option in row.code[2]}
    assert kept == {option for one in command("collector").params for option in one.opts if "days" in option}


def test_fields_of_the_simulator_s_answers() -> None:
    common = [field.name for field in fields(report.SimulationReport)]
    assert first(reference("simulation", "field")[: len(common)]) == common
    for section, kind in (
        ("Pods that arrive", report.ArrivalReport),
        ("Jobs that queue", report.QueueReport),
        ("Manifests", report.SnapshotReport),
    ):
        assert first(reference("simulation", "field", section)) == [f.name for f in fields(kind)][len(common) :]


def test_policies_of_the_simulator() -> None:
    assert first(reference("simulation", "policy")) == list(POLICIES)


def test_ports() -> None:
    names = ("plane mcp", "dashboard")
    listen = [option.default for name in names for option in command(name).params if option.name == "listen"]
    component = yaml.safe_load((ROOT / "deploy/functions/views/kustomization.yaml").read_text())
    (views, *_) = yaml.safe_load(component["patches"][-1]["patch"])
    addresses = [SchedulerOptions().listen, views["value"], *map(str, listen)]
    assert first(reference("environment", "port")) == [address.rpartition(":")[2] for address in addresses]


def test_labels_and_annotations() -> None:
    rows = reference("annotations", "key", "What you write")
    assert first(rows) == [PREFIX + name for name in TABLE]
    for row in rows:
        key = TABLE[row.code[0][0].removeprefix(PREFIX)]
        assert row.cells[1] + "s" == key.place
        for value in row.code[2]:
            key.parse(value)
    assert set(first(reference("annotations", "key", "What Dovetail writes"))) == {PREFIX + n for n in WRITTEN_BY_US}
    own = first(reference("annotations", "key", "The playground's own"))
    assert set(own) == {EXIT_CODE, GPU_LOAD, LOG, RUN_SECONDS}


def test_levels() -> None:
    rows = reference("annotations", "name")
    assert {row.code[0][0]: row.code[1][0] for row in rows} == LEVELS


def test_reasons() -> None:
    rows = reference("reasons", "code")
    assert {row.code[0][0]: row.cells[1] for row in rows} == {reason.code: reason.text for reason in Reason}
    assert len(rows) == len(Reason)
    assert all("Never" in row.cells[2] or "NotYet" in row.cells[2] for row in rows)


@pytest.mark.parametrize(
    ("module", "section"),
    [
        (metrics, "The scheduler's"),
        (operator_metrics, "The operator's"),
        (plane_metrics, "Of agents' endpoints"),
        (idle_metrics, "Of the policy about idle workloads"),
        (replica_metrics, "Of replicas by need"),
        (turn_metrics, "Of turns"),
        (collector_metrics, ""),
    ],
)
def test_metrics(module: ModuleType, section: str) -> None:
    known = {
        family.name + ("_total" if family.type == "counter" else ""): (family.type, sorted(metric._labelnames))
        for metric in vars(module).values()
        if isinstance(metric, MetricWrapperBase)
        for family in metric.describe()
        if not family.name.endswith("_created")
    }
    rows = reference("metrics" if section else "history", "metric", section)
    assert {row.code[0][0]: (row.cells[1], sorted(row.code[2])) for row in rows} == known


def test_endpoints() -> None:
    assert first(reference("metrics", "path", "The scheduler's")) == list(endpoints.PATHS)
    assert first(reference("metrics", "path", "The operator's")) == list(operator_endpoints.PATHS)
    assert first(reference("metrics", "path", "Of agents' endpoints")) == list(probes.PATHS)
    assert first(reference("metrics", "path", "Of the policy about idle workloads")) == list(idle_policy.PATHS)
    assert first(reference("metrics", "path", "Of replicas by need")) == list(probe_server.PLAIN_PATHS)
    assert first(reference("metrics", "path", "Of turns")) == list(probe_server.PLAIN_PATHS)


def test_the_metrics_of_the_agent() -> None:
    unhealthy = (Unhealthy("GPU-1", "lost", "", 0),)
    seen = NodeFacts(Host(), offered=frozenset({"nvidia.com/gpu"}), unhealthy=unhealthy)
    families = vitals.metrics(vitals.AgentMetrics(0.0, vitals.Looks(), True, True, seen, True, 0, Counts(), 0))
    known = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            sorted({name for sample in family.samples for name in sample.labels}),
        )
        for family in families
    }
    rows = reference("metrics", "metric", "The agent's")
    assert {row.code[0][0]: (row.cells[1], sorted(row.code[2])) for row in rows} == known
    served = agent_endpoints.answers(lambda: cast(Any, None))
    assert set(first(reference("metrics", "path", "The agent's"))) == served.keys()


def test_dialects_and_owners() -> None:
    written = first(reference("gangs", "resource"))
    assert written == [str(resource) for dialect in DIALECTS for resource in dialect.resources]
    owners = reference("gangs", "kind")
    assert [(row.cells[0], *row.code[1]) for row in owners] == [(o.resource.kind, str(o.resource)) for o in OWNER_KINDS]


def test_policy() -> None:
    rows = {row.code[0][0]: row.cells for row in reference("placing", "field")}
    defaults = {field.name: str(field.default) for field in fields(Policy)}
    written = {"fabric": "see above", "scoring": type(Policy().scoring).__name__}
    assert {name: cells[1] for name, cells in rows.items()} == defaults | written
    assert f"takes {SchedulerOptions().policy.attempts_per_step}," in rows["attempts_per_step"][2]


def test_fabric() -> None:
    assert [row.code[1][0] for row in reference("placing", "level")] == list(DEFAULT_FABRIC)


def test_actions_of_xids() -> None:
    table = xids.default()
    rows = {row.code[0][0]: row.cells[1] for row in reference("health", "action", "XIDs")}
    written = {
        xid: ACTIONS[word]
        for word, cell in rows.items()
        for first_xid, last in re.findall(r"\b(\d+)(?:-(\d+))?", cell)
        for xid in range(int(first_xid), int(last or first_xid) + 1)
    }
    assert written == {xid: row.action for xid, row in table.rows.items()}
    assert [row.code[0][0] for row in reference("health", "action", "Actions")] == [*ACTIONS]
    assert f"version {table.version}" in page("docs/reference/health.md").text


def rights(role: str) -> set[tuple[str, str, str]]:
    documents = yaml.safe_load_all((ROOT / "deploy/rbac.yaml").read_text())
    return _each_right(next(d for d in documents if d["kind"] == role)["rules"])


def _each_right(rules: Iterable[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group or "core", resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("role", "section"),
    [("ClusterRole", "On the whole cluster (ClusterRole)"), ("Role", "In its own namespace (Role)")],
)
def test_rights(role: str, section: str) -> None:
    rows = reference("rbac", "API group", section)
    assert {(r.cells[0], r.code[1][0], verb) for r in rows for verb in r.cells[2].split(", ")} == rights(role)


def test_rights_of_views() -> None:
    component = yaml.safe_load((ROOT / "deploy/functions/views/kustomization.yaml").read_text())
    steps = [step for one in component["patches"] for step in yaml.safe_load(one["patch"])]
    found = _each_right(step["value"] for step in steps if step["path"] == "/rules/-")
    rows = reference("rbac", "API group", "With the function views")
    assert {(r.cells[0], r.code[1][0], verb) for r in rows for verb in r.cells[2].split(", ")} == found
    roles = [one for one in yaml.safe_load_all((ROOT / "deploy/people/roles.yaml").read_text()) if one]
    assert first(reference("rbac", "ClusterRole", "Of people")) == [one["metadata"]["name"] for one in roles]
    asked = reference("rbac", "resource of `views.dovetail.dev`", "Of people")
    assert first(asked) == [one.plural for one in VIEWS]
    verbs = dict.fromkeys(NAMED, "get") | dict.fromkeys(POSTED, "create")
    assert [row.cells[1] for row in asked] == [verbs.get(one.plural, "list") for one in VIEWS]


def test_environment_variables() -> None:
    asked = re.compile(r'environ(?:\.get\(|\[)"(\w+)"|env(?:\.get\()"(\w+)"|"(\w+)" in os\.environ|envvar="(\w+)"')
    sources = [p.read_text() for where in ("src", "tools") for p in (ROOT / where).rglob("*.py")]
    sources += [(ROOT / name).read_text() for name in ("setup.py", "tests/needs.py")]
    known = {name for text in sources for names in asked.findall(text) for name in names if name}
    assert set(first(reference("environment", "variable"))) == known | {watched.DISABLE, watched.ENABLE}
