# SPDX-License-Identifier: Apache-2.0
"""Each JSON answer has a version and a kind, and follows the schema of its kind in the reference."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import ValidationError

from dovetail.cli import cli
from dovetail.cli.output import API_VERSION
from tests.cli.answers import SCHEMAS, answer
from tests.cli.clusters import CommandCluster, command_cluster, node
from tests.paths import ROOT
from tests.views.agents import AT, CLUSTER, lease, pod, request
from tools import answer_schemas

CASES = ROOT / "tests/advice/migrate/cases"
QUEUE = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "research"}, "spec": {}}
ON_FILES: list[tuple[str, tuple[str, ...]]] = [
    ("jobs --all", ("JobList",)),
    ("queue", ("WaitingJobList",)),
    ("nodes", ("NodeHealth",)),
    ("leases", ("LeaseList",)),
    ("share", ("QueueShare",)),
    ("free", ("Free",)),
    ("free --shape 2x8", ("LargestGangs",)),
    ("defrag ada/same", ("DefragPlan",)),
    ("defrag --shape 4", ("DefragPlan",)),
    ("why ada/worker", ("JobExplanation",)),
    ("why ada/same", ("JobExplanation", "LeaseRequestExplanation", "LeaseExplanation")),
    ("why bob/many", ("LeaseRequestExplanation",)),
    ("why research", ("QueueExplanation",)),
    ("priority ada/same", ("JobRank",)),
    ("whatif drain n1", ("WhatIf",)),
    ("drain n1 --evict --dry-run", ("DrainPlan",)),
    ("queue drain research --dry-run", ("QueueDrainPlan",)),
]
LIVE: list[tuple[str, str]] = [
    ("events sweep", "JobLife"),
    ("topology gpu-1", "NodeTopology"),
    ("install --dry-run --image registry.example/dovetail:1", "Installation"),
    ("install --plan", "InstallPlan"),
    ("uninstall --dry-run", "Removal"),
    ("status", "Status"),
    ("doctor", "Doctor"),
    ("top --once", "Top"),
    ("fabric show", "FabricTrees"),
    ("fabric check", "FabricCheck"),
]
ALONE: list[tuple[str, str]] = [
    ("memory llama-3.1-8b", "MemoryEstimate"),
    ("memory llama-3.1-8b --train lora", "MemoryEstimate"),
    ("memory --list", "KnownModel"),
    ("instances --gpus 8", "InstanceRanking"),
    ("spot --save 2m --restart 5m --mtbi 6h --discount 60%", "SpotAnswer"),
    (f"lint {CASES}/kueue.yaml", "LintFinding"),
    (f"migrate {CASES}/kueue.yaml", "Migration"),
    (f"migrate --plan {CASES}/kueue.yaml", "MigrationStep"),
    ("simulate --until 5 --policy fgd", "ArrivalReport"),
]
OWN_FORMS = ("LintFinding", "Migration", "MigrationStep")
ELSEWHERE = {
    "AgentInspection": "agent/test_inspect.py", "AgentsDemo": "demo/test_agents.py",
    "Capacity": "test_capacity.py", "Check": "test_check.py", "Cost": "test_cost.py",
    "Demo": "demo/test_jobs.py", "HistoryJob": "test_history.py", "IdleList": "test_idle.py",
    "InstanceTurn": "serve/test_serve_turns.py", "JobAdviceList": "test_advise.py",
    "QueueBudgets": "queues/test_budgets.py",
    "QueueReport": "simulate/test_simulate.py",
    "ReplicaCount": "../replicas/test_count.py",
    "ReplayDifference": "../recording/test_decided.py", "ReplayReport": "replay/test_replay.py",
    "ReplayedDecision": "../recording/test_decided.py", "ServePlan": "serve/test_serve_plan.py",
    "SnapshotReport": "simulate/test_simulate.py",
    "Topology": "test_topology.py", "UtilizationReport": "test_cost.py",
}  # fmt: skip
"""The kinds of answers that other tests check, as they need more than a command."""


def printed(*arguments: str, form: str = "json") -> str:
    result = CliRunner().invoke(cli, [*arguments, "-o", form])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code in (0, 1, 3) and result.stdout, result.output
    return result.stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cluster with agents, in which a pod, a request and a lease have one name."""
    file = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    same = (pod("ada", "same", 1), request("ada", "same"), lease("ada", "same", "n2", (7,)))
    file.write_text(yaml.safe_dump_all((*CLUSTER, QUEUE, *same)))
    return str(file)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandCluster]:
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "9"}}}
    spec = {"schedulerName": "dovetail", "restartPolicy": "Never", "containers": [container]}
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sweep", "namespace": "team-a"},
        "spec": {"template": {"spec": spec}},
    }  # fmt: skip
    racked = node("gpu-1")
    racked["metadata"]["labels"]["dovetail.dev/rack"] = "a"
    with command_cluster(tmp_path_factory.mktemp("live"), racked, job) as found:
        found.eventually(found.pods, bool)
        yield found


@pytest.mark.parametrize(("command", "wanted"), ON_FILES)
@pytest.mark.slow
def test_on_files(command: str, wanted: tuple[str, ...], files: str) -> None:
    answer(printed(*command.split(), "-f", files, "--at", AT), *wanted)


@pytest.mark.parametrize(("command", "wanted"), LIVE)
@pytest.mark.slow
def test_on_a_cluster(command: str, wanted: str, live: CommandCluster) -> None:
    answer(printed(*command.split(), "--kubeconfig", str(live.config)), wanted)


@pytest.mark.parametrize(("command", "wanted"), ALONE)
@pytest.mark.slow
def test_without_a_cluster(command: str, wanted: str) -> None:
    answer(printed(*command.split()), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command, kind in ALONE if kind not in OWN_FORMS])
def test_as_yaml_and_by_a_template(command: str) -> None:
    """The answers of commands that list nothing; those of lists are tested in test_listing."""
    whole, as_yaml = json.loads(printed(*command.split())), yaml.safe_load(printed(*command.split(), form="yaml"))
    for one in (whole, as_yaml):
        # How long it took.
        one.pop("seconds", None) if isinstance(one, dict) else None
    assert as_yaml == whole
    path = "{[*].kind}" if isinstance(whole, list) else "{.kind}"
    kinds = " ".join(one["kind"] for one in whole) if isinstance(whole, list) else whole["kind"]
    assert printed(*command.split(), form=f"jsonpath={path}").strip() == kinds


def test_all_kinds_are_checked() -> None:
    here = {kind for _, wanted in ON_FILES for kind in wanted} | {kind for _, kind in (*LIVE, *ALONE)}
    assert here.isdisjoint(ELSEWHERE) and here | set(ELSEWHERE) == set(answer_schemas.KINDS)
    for kind, file in ELSEWHERE.items():
        assert f'"{kind}"' in (ROOT / "tests/cli" / file).read_text(), (kind, file)


def test_a_schema_finds_what_is_wrong() -> None:
    right = {
        "apiVersion": API_VERSION, "kind": "Removal", "removed": ["Deployment x/y"], "kept": []
    }  # fmt: skip
    assert answer(json.dumps(right), "Removal") == right
    for wrong in ({"apiVersion": "v2"}, {"removed": [1]}, {"kept": None}, {"more": 1}):
        with pytest.raises(ValidationError):
            answer(json.dumps(right | wrong), "Removal")
    del right["kept"]
    with pytest.raises(ValidationError):
        answer(json.dumps(right), "Removal")


def test_the_schemas_are_made_from_the_types() -> None:
    made = dict(answer_schemas.files())
    assert made == {f"schemas/{path.name}": path.read_text() for path in SCHEMAS.iterdir()}, (
        "python -m tools.answer_schemas makes them"
    )
    assert (ROOT / "docs/reference/json.md").read_text() == answer_schemas.page()


def test_each_kind_that_is_written_has_a_schema() -> None:
    written = set()
    for path in (ROOT / "src/dovetail/cli").rglob("*.py"):
        written |= {kind for kind in answer_schemas.KINDS if f'"{kind}"' in path.read_text()}
    made_from_their_types = {"ArrivalReport", "QueueReport", "SnapshotReport"}
    assert written | made_from_their_types == set(answer_schemas.KINDS)
