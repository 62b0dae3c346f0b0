# SPDX-License-Identifier: Apache-2.0
"""The rule about the size of a model against the memory of the GPUs that the pod selects.

Only the weights count, in 16 bits, against all of the memory: KV cache and activations come on top. A pod that selects
no GPU product and no label of GKE's is checked only against an inventory whose nodes have the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.gpus import named
from dovetail.advice.lint.pods import Template, count
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.rules.memory import selected_mib
from dovetail.advice.lint.rules.products import GKE
from dovetail.advice.lint.served import served
from dovetail.core.model import GPU

_GKE_PRODUCTS = {
    "nvidia-tesla-t4": "T4", "nvidia-l4": "L4", "nvidia-tesla-v100": "V100-SXM2-16GB",
    "nvidia-tesla-a100": "A100-SXM4-40GB", "nvidia-a100-80gb": "A100-SXM4-80GB", "nvidia-h100-80gb": "H100-SXM5",
    "nvidia-h100-mega-80gb": "H100-SXM5", "nvidia-h200-141gb": "H200-SXM5", "nvidia-b200": "B200",
}  # fmt: skip
"""https://cloud.google.com/kubernetes-engine/docs/concepts/gpus."""
_GB = 10**9


def _too_large(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    for container in pod.gpu_containers:
        model = served(pod, container)
        memory_mib = _memory_mib(pod, facts) if model is not None else 0
        if model is None or not memory_mib:
            continue
        field = container.at("resources", "limits", GPU)
        gpus = count(field) or 0
        least = -(-model.weight_bytes // (memory_mib * 2**20))
        if gpus < least:
            whole_gb = gpus * memory_mib * 2**20 // _GB
            message = (
                f"the weights of {model.name} take {model.weight_bytes // _GB} GB in 16 bits, and the selected GPUs "
                f"have {whole_gb} GB: request {least} GPUs at least, or serve fewer bits"
            )
            yield RuleMatch(field, message)


def _memory_mib(pod: Template, facts: Facts) -> int:
    """The memory of each GPU; 0: unknown."""
    known = selected_mib(pod, facts)
    gpu = named(_GKE_PRODUCTS.get(pod.spec.at("nodeSelector", GKE).text, ""))
    return known or (gpu.memory_mib if gpu is not None else 0)


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: serve, labels: {{team: vision}}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  nodeSelector: {{nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}}
  containers:
  - name: serve
    image: vllm/vllm-openai:v0.11.0
    args: [--model=meta-llama/Llama-3.3-70B-Instruct, --tensor-parallel-size={0}]
    resources: {{limits: {{nvidia.com/gpu: {0}}}}}
    volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
  volumes: [{{name: shm, emptyDir: {{medium: Memory, sizeLimit: 8Gi}}}}]
"""

RULES = (
    Rule(
        id="G49",
        level=Severity.WARNING,
        title="The selected GPUs cannot hold the weights of the model",
        effect=(
            "The server ends with `torch.OutOfMemoryError: CUDA out of memory` while it loads, and again after each "
            "restart: `CrashLoopBackOff`."
        ),
        bad=_POD.format(1),
        good=_POD.format(4),
        template=_too_large,
        source="https://docs.vllm.ai/en/stable/configuration/conserving_memory",
    ),
)
