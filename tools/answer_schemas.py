# SPDX-License-Identifier: Apache-2.0
"""Generator of the JSON schemas of what commands print, and of the table of their kinds in the reference.

python -m tools.answer_schemas
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.advice.instances import Ranking
from dovetail.advice.memory import MemoryEstimate
from dovetail.advice.migrate.engine import Migration
from dovetail.advice.migrate.plan import PlanStep
from dovetail.advice.serve.types import ServePlan
from dovetail.cli.advise_report import JobAdviceList
from dovetail.cli.agent.inspect_report import Inspection
from dovetail.cli.change_prices import PricedWhatIf
from dovetail.cli.check_report import ManifestCheck
from dovetail.cli.demo.agents_story import AgentsDemo
from dovetail.cli.demo.jobs import DemoAnswer
from dovetail.cli.doctor.answer import DoctorAnswer
from dovetail.cli.fabric.answers import FabricCheck, FabricTrees
from dovetail.cli.history_columns import HistoryJob
from dovetail.cli.install.report import InstallAnswer
from dovetail.cli.lint.report import ReportedFinding
from dovetail.cli.memory.report import KnownModel
from dovetail.cli.output import API_VERSION
from dovetail.cli.replay.report import ReplayDifference, ReplayReport
from dovetail.cli.spot import Spot
from dovetail.cli.stranded_prices import PricedFree, PricedShape
from dovetail.cost.capacity import CapacityAnswer
from dovetail.cost.costs import CostAnswer
from dovetail.cost.idle_pods import IdleList
from dovetail.cost.utilization import Utilization
from dovetail.jobs.life import JobLife
from dovetail.kube.queue_budgets import QueueBudgetUses
from dovetail.operator.coexistence.survey import InstallPlan
from dovetail.operator.installation.removal import Removal
from dovetail.recording.decided import DecidedRun
from dovetail.replicas.count import ReplicaCount
from dovetail.sim.report import ArrivalReport, QueueReport, SnapshotReport
from dovetail.sleeping.run import InstanceTurn
from dovetail.views.defrag_types import Defrag
from dovetail.views.drain_types import DrainPlan
from dovetail.views.job_types import JobList
from dovetail.views.lease_types import LeasesView
from dovetail.views.node_types import NodeHealthView
from dovetail.views.queue_drain import QueueDrainPlan
from dovetail.views.queue_types import QueuePosition, QueueShare
from dovetail.views.rank_types import RankView
from dovetail.views.status import StatusView
from dovetail.views.top import Top
from dovetail.views.topology_types import NodeInside, Topology
from dovetail.views.why_types import Why, WhyLease, WhyQueue, WhyRequest

REFERENCE = Path(__file__).parents[1] / "docs/reference"
BEGIN, END = "<!-- made by python -m tools.answer_schemas -->\n", "<!-- end -->\n"
"""Around the table in json.md."""
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REF = "#/$defs/{name}"
_VALUES: dict[type, Any] = {msgspec.Raw: {}}
"""The schemas of types that msgspec has none for."""


class AnswerKind(Struct, frozen=True):
    """A kind of answer: the type, the command that prints it, and when it prints a list of them."""

    type: type
    command: str
    several: str = ""


EACH, SEVERAL = "always a list", "a list, if there are several"
KINDS: dict[str, AnswerKind] = {
    "AgentInspection": AnswerKind(Inspection, "agent inspect"),
    "AgentsDemo": AnswerKind(AgentsDemo, "demo agents"),
    "ArrivalReport": AnswerKind(ArrivalReport, "simulate", SEVERAL),
    "Capacity": AnswerKind(CapacityAnswer, "capacity"),
    "Check": AnswerKind(ManifestCheck, "check"),
    "Cost": AnswerKind(CostAnswer, "cost"),
    "DefragPlan": AnswerKind(Defrag, "defrag"),
    "Demo": AnswerKind(DemoAnswer, "demo"),
    "Doctor": AnswerKind(DoctorAnswer, "doctor"),
    "DrainPlan": AnswerKind(DrainPlan, "drain"),
    "FabricCheck": AnswerKind(FabricCheck, "fabric check"),
    "FabricTrees": AnswerKind(FabricTrees, "fabric show"),
    "Free": AnswerKind(PricedFree, "free"),
    "HistoryJob": AnswerKind(HistoryJob, "history", EACH),
    "IdleList": AnswerKind(IdleList, "idle"),
    "InstallPlan": AnswerKind(InstallPlan, "install --plan"),
    "InstanceTurn": AnswerKind(InstanceTurn, "serve turns", EACH),
    "Installation": AnswerKind(InstallAnswer, "install"),
    "InstanceRanking": AnswerKind(Ranking, "instances"),
    "JobAdviceList": AnswerKind(JobAdviceList, "advise"),
    "JobExplanation": AnswerKind(Why, "why", SEVERAL),
    "JobLife": AnswerKind(JobLife, "events"),
    "JobList": AnswerKind(JobList, "jobs"),
    "JobRank": AnswerKind(RankView, "priority"),
    "KnownModel": AnswerKind(KnownModel, "memory --list", EACH),
    "LargestGangs": AnswerKind(PricedShape, "free --shape"),
    "LeaseExplanation": AnswerKind(WhyLease, "why", SEVERAL),
    "LeaseList": AnswerKind(LeasesView, "leases"),
    "LeaseRequestExplanation": AnswerKind(WhyRequest, "why", SEVERAL),
    "LintFinding": AnswerKind(ReportedFinding, "lint", EACH),
    "MemoryEstimate": AnswerKind(MemoryEstimate, "memory"),
    "Migration": AnswerKind(Migration, "migrate"),
    "MigrationStep": AnswerKind(PlanStep, "migrate --plan", EACH),
    "NodeHealth": AnswerKind(NodeHealthView, "nodes", EACH),
    "NodeTopology": AnswerKind(NodeInside, "topology NODE"),
    "QueueBudgets": AnswerKind(QueueBudgetUses, "queue budgets"),
    "QueueDrainPlan": AnswerKind(QueueDrainPlan, "queue drain"),
    "QueueExplanation": AnswerKind(WhyQueue, "why"),
    "QueueReport": AnswerKind(QueueReport, "simulate", SEVERAL),
    "QueueShare": AnswerKind(QueueShare, "share", EACH),
    "Removal": AnswerKind(Removal, "uninstall"),
    "ReplayDifference": AnswerKind(ReplayDifference, "replay --decision"),
    "ReplayReport": AnswerKind(ReplayReport, "replay"),
    "ReplayedDecision": AnswerKind(DecidedRun, "replay --decision"),
    "ReplicaCount": AnswerKind(ReplicaCount, "serve replicas", EACH),
    "ServePlan": AnswerKind(ServePlan, "serve plan"),
    "SnapshotReport": AnswerKind(SnapshotReport, "simulate", SEVERAL),
    "SpotAnswer": AnswerKind(Spot, "spot"),
    "Status": AnswerKind(StatusView, "status"),
    "Top": AnswerKind(Top, "top"),
    "Topology": AnswerKind(Topology, "topology FILE"),
    "UtilizationReport": AnswerKind(Utilization, "report"),
    "WaitingJobList": AnswerKind(QueuePosition, "queue"),
    "WhatIf": AnswerKind(PricedWhatIf, "whatif"),
}


def schema(kind: str) -> dict[str, Any]:
    """The JSON schema of one answer of the kind."""
    (reference,), inside = msgspec.json.schema_components(
        [KINDS[kind].type], schema_hook=_VALUES.get, ref_template=_REF
    )
    for one in inside.values():
        if "properties" in one:
            # A field that has a default is printed as well.
            one["required"] = list(one["properties"])
    name = reference["$ref"].rpartition("/")[2]
    whole = inside[name]
    if f'"{reference["$ref"]}"'.encode() not in msgspec.json.encode(inside):
        del inside[name]
    head = {"apiVersion": {"const": API_VERSION}, "kind": {"const": kind}}
    return {
        "$schema": _DIALECT, "title": kind, "description": " ".join(whole.get("description", "").split()),
        "type": "object", "properties": head | whole["properties"], "required": [*head, *whole["required"]],
        "$defs": dict(sorted(inside.items())),
    }  # fmt: skip


def files() -> Iterator[tuple[str, str]]:
    """The name and the text of each schema, below `REFERENCE`."""
    for kind in KINDS:
        text = msgspec.json.format(msgspec.json.encode(schema(kind)), indent=1).decode()
        yield f"schemas/{kind}.json", f"{text}\n"


def table() -> str:
    """The kinds, by command."""
    rows = sorted(KINDS.items(), key=lambda pair: (pair[1].command, pair[0]))
    return "".join(
        f"| [{one.command}](cli.md#dovetail-{one.command.partition(' -')[0].rstrip(' ENODFIL').replace(' ', '-')}) | "
        f"[`{kind}`](schemas/{kind}.json) | {one.several} |\n"
        for kind, one in rows
    )


def page() -> str:
    """The text of the page, with its table made again."""
    text = (REFERENCE / "json.md").read_text()
    before, _, rest = text.partition(BEGIN)
    head = "\n| command | kind | |\n|---|---|---|\n"
    return f"{before}{BEGIN}{head}{table()}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Write the files again; a schema of no kind is removed."""
    (REFERENCE / "schemas").mkdir(exist_ok=True)
    made = dict(files())
    for path in (REFERENCE / "schemas").glob("*.json"):
        if f"schemas/{path.name}" not in made:
            path.unlink()
    for name, text in made.items():
        (REFERENCE / name).write_text(text)
    (REFERENCE / "json.md").write_text(page())


if __name__ == "__main__":
    main()
