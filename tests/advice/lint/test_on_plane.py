# SPDX-License-Identifier: Apache-2.0
"""A real kube-apiserver takes the corpus, refuses what the rules predict, takes what --fix makes of it, and
its admission policies agree with the rules."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import yaml
from click.testing import CliRunner

from dovetail.advice.lint.fix import fixed
from dovetail.advice.lint.rule import Rule
from dovetail.advice.lint.rules import BY_ID, RULES
from dovetail.advice.lint.source import documents
from dovetail.cli import cli
from dovetail.kube.manifests.templates import HOLDERS, templates
from tests.advice.lint.dry_runs import DryRuns
from tests.advice.lint.linted import facts, objects
from tests.advice.lint.test_policies import WITH_POLICY, examples, expected, placed
from tools.controlplane.plane import KubectlFailed, Plane

pytestmark = pytest.mark.plane

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
GROUPS = ("", "apps", "autoscaling", "batch", "policy", "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io")
REFUSED = {
    "G01": "Limit must be set for non overcommitable resources",
    "G02": "must be equal to nvidia.com/gpu limit",
    "G07": "not a valid selector operator",
    "G09": "tolerations",
    "G55": "Limit must be set for non overcommitable resources",
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
    """One that no other test uses: policies hold for all of it. One controller checks the types in them."""
    with Plane(controllers=["validatingadmissionpolicy-status-controller"]) as plane:
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


def custom_resources() -> str:
    """Definitions of all kinds with pod templates that a cluster has only if they are installed, without schemas."""
    definitions = []
    for kind in (holder.resource for holder in HOLDERS if "." in holder.resource.group):
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        definitions.append(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {
                    "name": f"{kind.plural}.{kind.group}",
                    "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
                },
                "spec": {
                    "group": kind.group,
                    "scope": "Namespaced" if kind.namespaced else "Cluster",
                    "names": {"plural": kind.plural, "kind": kind.kind},
                    "versions": [version],
                },
            }
        )
    return yaml.safe_dump_all(definitions)


@pytest.fixture(scope="module")
def with_kinds(alone: Plane) -> DryRuns:
    made = custom_resources()
    alone.kubectl("create", "-f-", input=made)
    alone.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    return DryRuns(alone)


@contextmanager
def policies(plane: Plane, *options: str) -> Iterator[None]:
    made = CliRunner().invoke(cli, ["lint", "--policy", *options]).stdout
    assert len(list(yaml.safe_load_all(made))) == 2 * (2 if options else len(WITH_POLICY))
    plane.kubectl("create", "-f-", input=made)
    try:
        yield
    finally:
        plane.kubectl("delete", "-f-", input=made)


def waited_for(server: DryRuns, whole: dict[str, Any], words: str, *, is_there: bool = True) -> str:
    """The message of the server, once it has the words, or not: policies take a while to apply."""
    until = time.monotonic() + ACTIVE_WITHIN_S
    while (words in (message := server.create(whole, with_warnings=True))) != is_there and time.monotonic() < until:
        time.sleep(0.1)
    return message


def tried(rule: Rule) -> dict[bool, dict[str, Any]]:
    """An object in which the rule finds something, and one in which it does not, of a kind that the server does not
    validate if the rule allows any kind."""
    holder = next(one for one in HOLDERS if one.resource.kind == "PyTorchJob")
    found: dict[bool, dict[str, Any]] = {}
    for whole, beside in examples(rule):
        is_faulty = bool(expected(rule, whole, []))
        for _, template in () if beside or is_faulty in found else templates(whole):
            job = placed({"metadata": {}, **template}, holder)
            found[is_faulty] = job if bool(expected(rule, job, [])) == is_faulty else here(whole)
            break
        else:
            found.setdefault(is_faulty, here(whole))
    return {is_faulty: whole | {"metadata": {"name": "a", **whole["metadata"]}} for is_faulty, whole in found.items()}


MISTYPED: dict[str, Any] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "mistyped"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ]
        },
        "validations": [{"expression": "object.spec.none == 1"}],
    },
}
"""One without a binding: it shows that types are checked."""


def of_types(plane: Plane) -> dict[str, Any]:
    """By policy what the server finds wrong about the types in it, once it has examined all of them."""
    plane.kubectl("create", "-f-", input=json.dumps(MISTYPED))
    until, checked, listed = time.monotonic() + ACTIVE_WITHIN_S, {}, [MISTYPED]
    while len(checked) < len(listed) and time.monotonic() < until:
        listed = plane.get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")["items"]
        statuses = {one["metadata"]["name"]: one.get("status", {}) for one in listed}
        checked = {name: one["typeChecking"] for name, one in statuses.items() if "typeChecking" in one}
        time.sleep(0.1)
    plane.kubectl("delete", "-f-", input=json.dumps(MISTYPED))
    assert len(checked) == len(listed), sorted(statuses.keys() - checked.keys())
    return {name: one.get("expressionWarnings", []) for name, one in checked.items()}


def test_policies_agree_with_the_rules(alone: Plane, with_kinds: DryRuns) -> None:
    server = with_kinds
    with policies(alone):
        for rule in WITH_POLICY:
            one = tried(rule)
            message = waited_for(server, one[True], f": {rule.id}: ")
            assert f": {rule.id}: " in message and "denied request" not in message, (rule.id, message)
            assert f": {rule.id}: " not in server.create(one[False], with_warnings=True), rule.id
            for whole in of(rule.bad) + of(rule.good):
                refused, warnings = server.judged(whole)
                assert "denied request" not in refused, (rule.id, refused)
                if not refused:
                    assert (f": {rule.id}: " in warnings) == bool(expected(rule, whole, [])), (rule.id, warnings)
        for file in CORPUS:
            for whole in of(file.read_text()):
                assert server.create(whole, with_warnings=True) == "", file.name
        assert {rule: one for rule, one in of_types(alone).items() if one} == {MISTYPED["metadata"]["name"]: ANY}


def owned(whole: dict[str, Any], kind: str) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": kind, "name": "a", "uid": "u", "controller": True}
    return whole | {"metadata": whole["metadata"] | {"ownerReferences": [owner]}}


def test_what_controllers_make_is_not_warned_of_and_yet_denied(alone: Plane, with_kinds: DryRuns) -> None:
    server, denied = with_kinds, "denied request: G24: spec.containers[train].securityContext.privileged"
    (privileged,), (anonymous,) = of(BY_ID["G24"].bad), of(BY_ID["G44"].bad)
    broken = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "a"}}
    broken["spec"] = {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": "none"}}}}}
    with policies(alone, "--only", "G24,G44"):
        assert ": G24: " in waited_for(server, privileged, ": G24: ")
        assert ": G44: " in waited_for(server, anonymous, ": G44: ")
        assert server.create(owned(privileged, "Job"), with_warnings=True) == ""
        assert server.create(broken) == ""
        job = placed(privileged, next(one for one in HOLDERS if one.resource.kind == "PyTorchJob"))
        job = json.loads(alone.kubectl("create", "-o", "json", "-f-", input=yaml.safe_dump(job)))
        labelled = job | {"metadata": job["metadata"] | {"labels": {"a": "b"}}}
        changed = job | {"spec": job["spec"] | {"runPolicy": {}}}
        assert server.replace(labelled) == ""
        assert "spec.pytorchReplicaSpecs[Worker].template.spec.containers[train]" in server.replace(changed)
    with policies(alone, "--only", "G24,G44", "--deny", "G24,G44"):
        assert denied in waited_for(server, privileged, denied)
        assert "denied request: G44: metadata.labels" in waited_for(server, anonymous, "denied request: G44")
        assert denied in server.create(owned(privileged, "Job"))
        # A rule about a whole object judges only what users create.
        assert server.create(owned(anonymous, "Job")) == ""
        assert "fails to evaluate" in server.create(broken)
        assert server.replace(changed) == ""
        create = ("create", "--dry-run=server", "-f-")
        daemon = yaml.safe_dump(owned(privileged, "DaemonSet"))
        controller = "system:serviceaccount:kube-system:daemon-set-controller"
        with pytest.raises(KubectlFailed, match="G24"):
            alone.kubectl(*create, input=daemon)
        alone.kubectl(*create, "--as", controller, input=daemon)
        alone.kubectl(*create, "-n", "kube-system", input=yaml.safe_dump(privileged))
        alone.kubectl("label", "namespace", NAMESPACE, "team=vision")
        assert waited_for(server, anonymous, "G44", is_there=False) == ""
