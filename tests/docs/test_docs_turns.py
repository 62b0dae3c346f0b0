# SPDX-License-Identifier: Apache-2.0
"""The manifests of turns: the command takes its arguments, its rights are few, names agree with the code."""

from __future__ import annotations

import re
from typing import Any

import yaml

from dovetail.cli.serve.serve_turns import command
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate import pods
from dovetail.kube.translate.annotations import SLEEP_ENGINES
from dovetail.sleeping.engines import ENGINES
from dovetail.sleeping.instances import GATE, TurnStep
from dovetail.sleeping.run import LEASE_NAME, InstanceTurn
from tests.docs.pages import page
from tests.kube.yaml_objects import wire
from tests.paths import ROOT

TEXT = (ROOT / "docs/how-to/take-turns.md").read_text()
OBJECTS: list[dict[str, Any]] = [
    one
    for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    for one in yaml.safe_load_all(block)
]  # fmt: skip


def named(kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in OBJECTS if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def test_the_fields_of_the_answer() -> None:
    rows = page("docs/reference/cli.md").section("dovetail serve turns").rows("field")
    fields = {name for row in rows for name in row.code[0]}
    assert fields == set(InstanceTurn.__struct_encode_fields__)


def test_the_engines_of_the_table_are_those_that_are_called() -> None:
    rows = page("docs/how-to/take-turns.md").rows("engine")
    assert tuple(row.code[1][0] for row in rows) == tuple(ENGINES) == SLEEP_ENGINES


def test_the_command_takes_the_arguments_of_the_deployment() -> None:
    (container,) = named("Deployment", "turns")["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["serve", "turns"]
    context = command.make_context("turns", list(container["args"][2:]))
    assert context.params["give"] and context.params["least_awake_s"] == 60
    assert context.params["listen"].endswith(f":{container['ports'][0]['containerPort']}")


def test_it_may_write_no_lease_but_its_own() -> None:
    rules = named("Role", "turns")["rules"]
    leases = [one for one in rules if one["resources"] == ["leases"] and one["verbs"] != ["create"]]
    assert [one["resourceNames"] for one in leases] == [[LEASE_NAME]]


def test_the_instance_waits_for_what_is_written_and_the_scheduler_reads_its_memory() -> None:
    template = named("Deployment", "llama")["spec"]["template"]
    (gate,) = template["spec"]["initContainers"]
    assert gate["name"] == GATE and f"grep -q ^{TurnStep.START} " in gate["command"][-1]
    record = pods.pod(wire(Pod, yaml.safe_dump(template)))
    assert record.problem is None
    assert (record.request.gpu_memory_mib, record.request.gpu_asleep_mib) == (71680, 3072)
