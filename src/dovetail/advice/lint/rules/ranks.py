# SPDX-License-Identifier: Apache-2.0
"""The rule about processes of one container against its GPUs.

The numbers are read where the command has them as numbers: torchrun's `--nproc-per-node`, and the tensor-parallel size
of vLLM, SGLang and TGI. The pods of a LeaderWorkerSet, and of other groups with a leader, share the ranks. A launcher
that reaches other pods (Ray, several nodes) may use their GPUs, too: then nothing is known. A container without whole
GPUs is not checked: its GPUs come from a claim, or it runs on CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dovetail.advice.lint.peers import sharing_ranks
from dovetail.advice.lint.pods import Template, count, words_of
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.served import SEVERAL_PODS
from dovetail.core.model import GPU

_PROCESSES = re.compile(r"--nproc[-_]per[-_]node[= ](\d{1,4})\b")
_TENSOR_PARALLEL = re.compile(r"(?:--tensor[-_]parallel[-_]size|--tp[-_]size|--num-shard|(?<!\S)-tp)[= ](\d{1,4})\b")
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
