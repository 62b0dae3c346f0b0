# SPDX-License-Identifier: Apache-2.0
"""The rule about processes of one container against its GPUs.

The numbers are read where the command has them as numbers: torchrun's `--nproc-per-node`, and the tensor-parallel size
of vLLM, SGLang and TGI, times the stages of a pipeline; else where Kubeflow's objects have them for each pod, or Ray's
for each worker. The pods of a LeaderWorkerSet, and of other groups with a leader, share the ranks. A launcher
that reaches other pods (Ray, several nodes) may use their GPUs, too: then nothing is known. A container without whole
GPUs is not checked: its GPUs come from a claim, or it runs on CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.peers import sharing_ranks
from dovetail.advice.lint.pods import Template, count, words_of
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.served import SEVERAL_PODS
from dovetail.core.model import GPU

_PROCESSES = re.compile(r"--nproc[-_]per[-_]node[= ](\d{1,4})\b")
_TENSOR_PARALLEL = re.compile(r"(?:--tensor[-_]parallel[-_]size|--tp[-_]size|--num-shard|(?<!\S)-tp)[= ](\d{1,4})\b")
_PIPELINE = re.compile(r"(?:--pipeline[-_]parallel[-_]size|--pp[-_]size|(?<!\S)-pp)[= ](\d{1,4})\b")
_WORKER, _DIGITS = "Worker", 6
_CPU = re.compile(r"\bgloo\b|--device[= ]cpu")


def _more_ranks(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    for container in pod.containers:
        field = container.at("resources", "limits", GPU)
        gpus = count(field) or 0
        words = words_of(container)
        if gpus < 1 or _CPU.search(words):
            continue
        for pattern, what in ((_PROCESSES, "processes"), (_TENSOR_PARALLEL, "tensor-parallel ranks")):
            found = pattern.search(words)
            several = pattern is _TENSOR_PARALLEL and SEVERAL_PODS.search(words)
            pods = sharing_ranks(pod) if pattern is _TENSOR_PARALLEL else 1
            if found is None or several or int(found[1]) <= gpus * pods:
                continue
            have = (
                f"the container has {gpus} GPUs: write {found[1]}" if pods == 1 else f"{pods} pods have {gpus * pods}"
            )
            yield RuleMatch(field, f"`{found[0]}` starts {found[1]} {what}, and {have}")
            break
        else:
            yield from _product(pod, field, words)
            yield from _of_object(pod, field)


def _product(pod: Template, gpus: Field, words: str) -> Iterator[RuleMatch]:
    """The stages of a pipeline, each of which has the tensor-parallel ranks."""
    stages, ranks = _PIPELINE.search(words), _TENSOR_PARALLEL.search(words)
    if stages is None or SEVERAL_PODS.search(words):
        return
    wanted = int(stages[1]) * int(ranks[1] if ranks is not None else 1)
    have = (count(gpus) or 0) * sharing_ranks(pod)
    if wanted > have:
        options = " and ".join(f"`{one[0]}`" for one in (ranks, stages) if one is not None)
        yield RuleMatch(gpus, f"{options} need {wanted} GPUs, and there are {have}: write {wanted}, or fewer stages")


def _of_object(pod: Template, gpus: Field) -> Iterator[RuleMatch]:
    """A field of the object, as operators pass it to the program."""
    have = count(gpus) or 0
    for field, guess in _fields(pod):
        number = field.text if field.text.isdecimal() and len(field.text) < _DIGITS else ""
        wanted = field.whole if field.whole is not None else int(number or 0)
        if wanted > have:
            message = (
                f"{field.name} is {wanted}, and the container has {have} GPUs: write {have}, or request {wanted} GPUs"
            )
            yield RuleMatch(field, message, guess=guess)


def _fields(pod: Template) -> Iterator[tuple[Field, bool]]:
    """(field, whether its processes may do without a GPU each)."""
    whole, path = pod.whole, pod.field.path
    group, kind = pod.group_kind
    if (group, kind) == ("kubeflow.org", "PyTorchJob"):
        yield whole.at("spec", "nprocPerNode"), False
    elif (group, kind) == ("kubeflow.org", "MPIJob") and _WORKER in path:
        yield whole.at("spec", "slotsPerWorker"), True
    elif group == "trainer.kubeflow.org" and kind == "TrainJob":
        yield whole.at("spec", "trainer", "numProcPerNode"), False
    elif group == "ray.io" and path:
        yield whole.at(*path[:-1], "rayStartParams", "num-gpus"), False


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: serve, labels: {{team: vision}}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  containers:
  - name: serve
    image: registry.example.com/serve:1.4
    args: [serve, my-model, --tensor-parallel-size={0}]
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""

RULES = (
    Rule(
        id="G48",
        level=Severity.WARNING,
        title="The command starts more GPU processes than the container has GPUs",
        effect=(
            "The processes without a GPU end with `CUDA error: invalid device ordinal`, or vLLM with `World size (4) "
            "is larger than the number of available GPUs (1)`."
        ),
        bad=_POD.format(4),
        good=_POD.format(1),
        template=_more_ranks,
        source="https://docs.vllm.ai/en/stable/serving/parallelism_scaling, https://pytorch.org/docs/stable/elastic/run.html",
    ),
)
