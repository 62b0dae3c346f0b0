# SPDX-License-Identifier: Apache-2.0
"""The rule about inference engines that take turns on a GPU (dovetail.dev/gpu-memory-asleep).

An engine starts awake: without the init container that waits for its turn it starts beside the one that is awake, and
finds no memory. Asleep, vLLM at level 1 and SGLang keep the weights in the memory of the host, which only a request
keeps for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.lint.pods import Template
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity

_ASLEEP, _ENGINE = "dovetail.dev/gpu-memory-asleep", "dovetail.dev/sleep-engine"
_GATE = "dovetail-turn"
_WITHOUT_WEIGHTS = "vllm-level-2"


def _turns(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    asleep = pod.meta.at("annotations", _ASLEEP)
    if not asleep or pod.partial:
        return
    engine = pod.meta.at("annotations", _ENGINE)
    if not engine:
        yield RuleMatch(asleep, f"the pod takes no turns without an engine that is known: add {_ENGINE}")
    if _GATE not in [one.at("name").text for one in pod.init_containers]:
        message = (
            f"the engine starts awake, also while another has its turn: add the init container {_GATE}, which waits "
            "until the annotation dovetail.dev/turn begins with start"
        )
        yield RuleMatch(asleep, message)
    for container in pod.gpu_containers:
        amounts = container.at("resources")
        asks = amounts.at("requests", "memory") or amounts.at("limits", "memory")
        if not asks and engine.text != _WITHOUT_WEIGHTS:
            message = "the weights are in the memory of the host while it sleeps: request memory for them"
            yield RuleMatch(amounts, message)


_POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: llama
  namespace: serving
  labels: {{team: chat}}
  annotations: {{dovetail.dev/gpu-memory: 70Gi, dovetail.dev/gpu-memory-asleep: 3Gi, dovetail.dev/sleep-engine: vllm}}
spec:
  schedulerName: dovetail
{0}  containers:
  - name: engine
    image: vllm/vllm-openai:v0.11.0
    args: [--model, meta-llama/Llama-3.1-8B-Instruct, --enable-sleep-mode]
    resources: {{{1}limits: {{nvidia.com/gpu.shared: 1}}}}
"""
_INIT = """\
  initContainers:
  - name: dovetail-turn
    image: registry.example.com/busybox:1.37
    command: [sh, -c, "until grep -q ^start /turn/turn; do sleep 1; done"]
"""

RULES = (
    Rule(
        id="G60",
        level=Severity.WARNING,
        title="An engine that sleeps does not wait for its turn, or has no memory for its weights",
        effect=(
            "Two engines are awake on one GPU, and the second fails for want of memory; or the kernel ends the engine "
            "when it falls asleep, since its weights go to the memory of the host."
        ),
        bad=_POD.format("", ""),
        good=_POD.format(_INIT, "requests: {memory: 40Gi}, "),
        template=_turns,
        source="docs/how-to/take-turns.md; vLLM, Sleep Mode",
    ),
)
