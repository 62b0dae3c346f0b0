# SPDX-License-Identifier: Apache-2.0
"""The rule about the parts of NVIDIA's driver that a container gets.

The container toolkit mounts what NVIDIA_DRIVER_CAPABILITIES names. CUDA is `compute`; a container with a display or
with graphics may do without. `utility` alone is enough for a program that only watches GPUs: a guess, unless the image
or the command names a framework.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.lint.pods import Template, env_of, gpus_of, runs_framework
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity

_VARIABLE = "NVIDIA_DRIVER_CAPABILITIES"
_KNOWN = frozenset({"all", "compute", "compat32", "graphics", "utility", "video", "display", "ngx"})
_ENOUGH = frozenset({"all", "compute", "graphics", "display"})


def _without_cuda(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    for container in pod.containers:
        if not gpus_of(container):
            continue
        for name, entry in env_of(container):
            value = entry.at("value")
            if name != _VARIABLE or not value.text or "$" in value.text:
                continue
            parts = {one.strip() for one in value.text.split(",")} - {""}
            unknown = sorted(parts - _KNOWN)
            if unknown:
                message = f"the driver has no part {unknown[0]!r}: write a list such as compute,utility"
                yield RuleMatch(value, message)
            elif not parts & _ENOUGH:
                message = f"{value.text} leaves out compute, and with it CUDA: write compute,{value.text}"
                yield RuleMatch(value, message, guess=not runs_framework(container))


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  containers:
  - name: train
    image: registry.example.com/train:1.4
    env: [{{name: NVIDIA_DRIVER_CAPABILITIES, value: "{0}"}}]
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""

RULES = (
    Rule(
        id="G57",
        level=Severity.WARNING,
        title="The container gets the driver without CUDA",
        effect=(
            "The program finds no driver: `libcuda.so.1: cannot open shared object file`, `no CUDA-capable device is "
            "detected`. For a part that does not exist, the container does not start: `unsupported capabilities found`."
        ),
        bad=_POD.format("utility"),
        good=_POD.format("compute,utility"),
        template=_without_cuda,
        source="https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html",
    ),
)
