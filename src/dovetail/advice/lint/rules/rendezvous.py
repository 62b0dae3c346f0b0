# SPDX-License-Identifier: Apache-2.0
"""The rule about the pods of one job that do not find each other.

- torchrun's `--nnodes` is more than the pods that the object makes: only for kinds whose pods are one job, and not for
  an elastic number, or for a container without an image, which is a patch.
- The address at which the ranks meet is the pod itself, in a job of several pods. With `--nnodes=1` each trains alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.peers import job_pods, peers_of
from dovetail.advice.lint.pods import Template, env_of, templates_of, words_of
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity

_NODES = re.compile(r"--nnodes[= ]+(\d{1,5})\b(?!:)")
_HERE = r"(localhost|127\.0\.0\.1|::1|\[::1\])"
_MEETS = re.compile(rf"--(?:master[-_]addr|rdzv[-_]endpoint|dist-init-addr)[= ]+[\"']?{_HERE}(?![\w.-])")
_ADDRESS, _IS_HERE = "MASTER_ADDR", re.compile(_HERE)
_WHOLE_JOBS = frozenset({
    ("batch", "Job"), ("batch", "CronJob"), ("jobset.x-k8s.io", "JobSet"), ("batch.volcano.sh", "Job"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
    *(("kubeflow.org", f"{kind}Job") for kind in ("PyTorch", "TF", "XGBoost", "Paddle", "JAX")),
})  # fmt: skip
"""Kinds of which one object is one job, and has all of its pods."""


def _apart(whole: Field, _: Facts) -> Iterator[RuleMatch]:
    pods = [pod for pod in templates_of(whole) if pod.gpu_containers and not pod.partial]
    if not pods:
        return
    number = _pods(whole, pods)
    for pod in pods:
        for container in pod.gpu_containers:
            words = words_of(container)
            nodes = _NODES.search(words)
            wanted = int(nodes[1]) if nodes is not None else 1
            command = container.at("command") if container.at("command") else container.at("args")
            if nodes is not None and wanted > number > 0 and container.at("image"):
                message = (
                    f"`{nodes[0]}` waits for {wanted} pods, and the object makes {number}: write {number}, or make more"
                )
                yield RuleMatch(command, message)
            elif (wanted if nodes is not None else peers_of(pod)) > 1:
                yield from _at_home(container, command, words)


def _at_home(container: Field, command: Field, words: str) -> Iterator[RuleMatch]:
    meets = _MEETS.search(words)
    if meets is not None:
        message = f"`{meets[0]}` is each pod itself: write the name of the first pod, such as train-0.train"
        yield RuleMatch(command, message)
    for name, entry in env_of(container):
        value = entry.at("value")
        if name == _ADDRESS and _IS_HERE.fullmatch(value.text):
            message = f"{_ADDRESS} is {value.text}, each pod itself: write the name of the first pod"
            yield RuleMatch(value, message)


def _pods(whole: Field, pods: list[Template]) -> int:
    """How many pods with GPUs the object makes; 0 if that is unknown."""
    kind = pods[0].group_kind
    if kind not in _WHOLE_JOBS:
        return 0
    if kind[0] == "batch":
        spec = whole.at("spec") if kind[1] == "Job" else whole.at("spec", "jobTemplate", "spec")
        width = spec.at("parallelism")
        return job_pods(spec) if not width or width.whole is not None else 0
    if kind[1] == "LeaderWorkerSet":
        return whole.at("spec", "leaderWorkerTemplate", "size").whole or 0
    return sum(peers_of(pod) for pod in pods)


_JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  parallelism: 4
  completions: 4
  completionMode: Indexed
  backoffLimit: 4
  template:
    spec:
      restartPolicy: Never
      priorityClassName: batch
      schedulerName: dovetail
      containers:
      - name: train
        image: registry.example.com/train:1.4
        command: [torchrun, --nnodes={0}, --nproc-per-node=1, train.py]
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""

RULES = (
    Rule(
        id="G56",
        level=Severity.WARNING,
        title="The pods of a job do not find each other",
        effect=(
            "Each rank waits for the others until the rendezvous times out, with its GPUs idle: "
            "`DistStoreError: Timed out after 901 seconds waiting for clients`."
        ),
        bad=_JOB.format(8),
        good=_JOB.format(4),
        whole=_apart,
        source="https://pytorch.org/docs/stable/elastic/run.html",
    ),
)
