# SPDX-License-Identifier: Apache-2.0
"""The rule about Deployments whose rolling update needs more GPUs than the nodes have.

A node has room for as many pods as its GPUs allow, used by others or not, so the rule finds too little rather than too
much. It finds nothing if the pods do not fit without a surge either, if Karpenter may add nodes, and if the update may
end an old pod first (maxUnavailable).
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import templates_of
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.selection import asked, grows, offers, suited
from dovetail.kube.manifests.templates import group_kind

_DEFAULT = "25%"


def _surge(whole: Field, facts: Facts) -> Iterator[RuleMatch]:
    if group_kind(whole.value) != ("apps", "Deployment") or not facts.nodes or grows(facts):
        return
    replicas, strategy = whole.at("spec", "replicas"), whole.at("spec", "strategy")
    wanted = replicas.whole if replicas else 1
    fewer = _rounded_down(strategy.at("rollingUpdate", "maxUnavailable"), wanted or 0)
    if not wanted or wanted < 0 or fewer != 0 or strategy.at("type").text not in ("", "RollingUpdate"):
        return
    for pod in templates_of(whole):
        needed = {name: gpus for name, (gpus, _) in asked(pod).items() if gpus}
        if not needed:
            continue
        room = sum(min(offers(node, name) // gpus for name, gpus in needed.items()) for node in suited(pod, facts))
        if room == wanted:
            gpus = ", ".join(f"{gpus} {name}" for name, gpus in needed.items())
            message = (
                f"an update starts a new pod ({gpus}) before it ends an old one, and the nodes have room for "
                f"{room}: set maxSurge to 0 and maxUnavailable to 1, or the type Recreate"
            )
            yield RuleMatch(strategy if strategy else whole.at("spec"), message)


def _rounded_down(value: Field, replicas: int) -> int | None:
    """A number or a percentage of the replicas, as the Deployment controller rounds maxUnavailable; None if it is
    neither. Where it is 0, the surge is at least 1: the API server refuses two zeros."""
    if value.whole is not None:
        return value.whole
    text = value.text if value else _DEFAULT
    if not text.endswith("%") or not text[:-1].isdecimal():
        return None
    return replicas * int(text[:-1]) // 100


_SERVE = """\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: serve, labels: {{team: vision}}}}
spec:
  replicas: 1
  {0}selector: {{matchLabels: {{team: vision}}}}
  template:
    metadata: {{labels: {{team: vision}}}}
    spec:
      priorityClassName: batch
      containers:
      - name: serve
        image: registry.example.com/serve:1.4
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
---
apiVersion: v1
kind: Node
metadata: {{name: gpu-1}}
status: {{allocatable: {{nvidia.com/gpu: 1}}}}
"""

RULES = (
    Rule(
        id="G50",
        level=Severity.WARNING,
        title="A rolling update needs more GPUs than the nodes have",
        effect=(
            "The new pod stays Pending, `Insufficient nvidia.com/gpu`, the old one runs on, and the update ends with "
            "`ProgressDeadlineExceeded`."
        ),
        bad=_SERVE.format(""),
        good=_SERVE.format("strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}\n  "),
        whole=_surge,
        needs_nodes=True,
        source="https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#rolling-update-deployment",
    ),
)
