# SPDX-License-Identifier: Apache-2.0
"""A real kube-apiserver takes the corpus, refuses what the rules predict, takes what --fix makes of it, and
its admission policies agree with the rules."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dovetail.advice.lint.fix import fixed
from dovetail.advice.lint.rule import Rule
from dovetail.advice.lint.rules import RULES
from dovetail.advice.lint.source import documents
from dovetail.cli import cli
from tests.advice.lint.dry_runs import DryRuns
from tests.advice.lint.linted import facts, objects
from tools.controlplane.plane import Plane

pytestmark = pytest.mark.plane

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
GROUPS = ("", "apps", "autoscaling", "batch", "policy", "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io")
REFUSED = {
    "G01": "Limit must be set for non overcommitable resources",
    "G02": "must be equal to nvidia.com/gpu limit",
    "G07": "not a valid selector operator",
    "G09": "tolerations",
}
"""Rules whose wrong example the server refuses, and its message."""
NAMESPACE = "default"
CLASSES = ("batch", "serving", "interactive")
ACTIVE_WITHIN_S = 60.0


def built_in(whole: dict[str, Any]) -> bool:
    group = whole["apiVersion"].rpartition("/")[0]
    return group in GROUPS and whole["kind"] not in ("Namespace", "Node", "PriorityClass")


def here(whole: dict[str, Any]) -> dict[str, Any]:
    """In the one namespace that there is."""
    meta = {key: inner for key, inner in whole["metadata"].items() if key != "namespace"}
    return whole | {"metadata": meta}


def of(text: str) -> list[dict[str, Any]]:
    return [here(whole.value) for whole in objects(text) if built_in(whole.value)]


def mended(rule: Rule) -> str:
    return "".join(fixed(each, facts(rule.bad), RULES).text for each in documents("bad.yaml", rule.bad))


def try_to_create(server: DryRuns, wholes: list[dict[str, Any]], *, with_warnings: bool = False) -> str:
    """The messages of the server; "" if it takes them."""
    return "; ".join(filter(None, (server.create(whole, with_warnings=with_warnings) for whole in wholes)))


@pytest.fixture(scope="module")
def alone() -> Iterator[Plane]:
    """One that no other test uses: policies hold for all of it."""
    with Plane(controllers=False) as plane:
        for name in CLASSES:
            plane.kubectl("create", "priorityclass", name, "--value=100")
        yield plane


@pytest.fixture(scope="module")
def server(alone: Plane) -> DryRuns:
    return DryRuns(alone)


@pytest.mark.parametrize("file", CORPUS, ids=[file.name for file in CORPUS])
def test_the_corpus_is_taken(server: DryRuns, file: Path) -> None:
    wholes = of(file.read_text())
    assert not wholes or try_to_create(server, wholes) == ""


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.fixable], ids=lambda rule: rule.id)
def test_what_is_mended_is_taken(server: DryRuns, rule: Rule) -> None:
    assert of(rule.bad)
    before = try_to_create(server, of(rule.bad))
    assert REFUSED.get(rule.id, "") in before and bool(before) == (rule.id in REFUSED), before
    assert try_to_create(server, of(mended(rule))) == ""


def test_several_faults_of_one_pod_are_mended_together(server: DryRuns) -> None:
    text = """\
apiVersion: {0}
kind: {1}
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  {2}
    restartPolicy: {3}
    priorityClassName: batch
    containers:
    - name: train   # the one
      image: registry.example.com/train:1.4
      resources:
        requests: {{cpu: 4, nvidia.com/gpu: 2}}
        limits: {{cpu: 4, memory: 60Gi, nvidia.com/gpu: 1}}
    - name: look
      image: registry.example.com/look:1.4
      resources:
        requests: {{nvidia.com/mig-1g.10gb: 1}}
"""
    template = "template:\n   metadata: {labels: {app: train, team: vision}}\n   spec:"
    for version, kind, head, restart in (
        ("batch/v1", "Job", f"backoffLimit: 2\n  {template}", "Never"),
        ("apps/v1", "Deployment", f"selector: {{matchLabels: {{app: train}}}}\n  {template}", "Always"),
        (
            "apps/v1",
            "StatefulSet",
            f"serviceName: a\n  selector: {{matchLabels: {{app: train}}}}\n  {template}",
            "Always",
        ),
    ):
        bad = text.format(version, kind, head, restart)
        message = try_to_create(server, of(bad))
        assert REFUSED["G01"] in message and REFUSED["G02"] in message, message
        (read,) = documents("bad.yaml", bad)
        good = fixed(read, facts(bad), RULES).text
        assert try_to_create(server, of(good)) == "", good
        assert "# the one" in good


def deployment(pod: dict[str, Any]) -> dict[str, Any]:
    spec = {key: value for key, value in pod["spec"].items() if key != "restartPolicy"}
    labels = {"app": "a"} | pod["metadata"].get("labels", {})
    template = {"metadata": {"labels": labels}, "spec": spec}
    made = {"selector": {"matchLabels": {"app": labels["app"]}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": pod["metadata"], "spec": made}


def cron_job(pod: dict[str, Any]) -> dict[str, Any]:
    made = {
        "schedule": "0 0 * * *",
        "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never"} | pod["spec"]}}},
    }
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": pod["metadata"], "spec": made}


WITH_CEL = [rule for rule in RULES if rule.cel]


def pod_of(text: str) -> dict[str, Any] | None:
    return next((whole for whole in of(text) if whole["kind"] == "Pod"), None)


def waited_for(server: DryRuns, pod: dict[str, Any], words: str, *, with_warnings: bool) -> str:
    """The message of the server, once it has the words or the time is up: policies take a while to apply."""
    until = time.monotonic() + ACTIVE_WITHIN_S
    while (
        words not in (message := try_to_create(server, [pod], with_warnings=with_warnings)) and time.monotonic() < until
    ):
        time.sleep(0.1)
    return message


@pytest.mark.parametrize("action", ["warn", "deny"])
def test_policies_agree_with_the_rules(alone: Plane, server: DryRuns, action: str) -> None:
    assert WITH_CEL
    ids = ",".join(rule.id for rule in WITH_CEL)
    made = CliRunner().invoke(cli, ["lint", "--policy", *(["--deny", ids] if action == "deny" else [])]).stdout
    assert len(list(yaml.safe_load_all(made))) == 2 * len(WITH_CEL)
    alone.kubectl("create", "-f-", input=made)
    warns = action == "warn"
    try:
        for rule in WITH_CEL:
            bad, good = pod_of(rule.bad), pod_of(rule.good)
            assert bad and good, rule.id
            words = f"{rule.id}: {rule.title}"
            # What the server refuses by itself, it refuses before policies or after.
            if rule.id not in REFUSED:
                assert words in waited_for(server, bad, words, with_warnings=warns), rule.id
                assert (try_to_create(server, [bad]) == "") == warns, rule.id
            assert words not in try_to_create(server, [good], with_warnings=warns), rule.id
            for made_by in (deployment, cron_job):
                assert words in try_to_create(server, [made_by(bad)], with_warnings=warns), rule.id
                assert words not in try_to_create(server, [made_by(good)], with_warnings=warns), rule.id
        for file in CORPUS:
            pods = [whole for whole in of(file.read_text()) if whole["kind"] == "Pod"]
            assert not pods or try_to_create(server, pods, with_warnings=warns) == "", file.name
    finally:
        alone.kubectl("delete", "-f-", input=made)
