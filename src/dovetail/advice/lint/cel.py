# SPDX-License-Identifier: Apache-2.0
"""Parts of the CEL expressions of rules, over `variables.pod`, a Pod or a pod template."""

ASKS_FOR_GPUS = (
    "has({0}.resources) && has({0}.resources.limits) && {0}.resources.limits.exists(name, "
    "name.matches('^nvidia[.]com/(gpu|mig-[^/]+)([.]shared)?$'))"
)
"""A format string; its argument is the variable of the container."""
OF_A_DAEMON_SET = (
    "has(variables.pod.metadata.ownerReferences) && "
    "variables.pod.metadata.ownerReferences.exists(o, o.kind == 'DaemonSet')"
)


def of_gpu_containers(passes: str) -> str:
    """An expression that is true if `passes` is true for each container `c` that requests GPUs."""
    return f"variables.pod.spec.containers.all(c, !({ASKS_FOR_GPUS.format('c')}) || ({passes}))"


def without_gpus_or(passes: str) -> str:
    """An expression that is true if `passes` is true, or no container requests GPUs."""
    return f"({passes}) || !variables.pod.spec.containers.exists(c, {ASKS_FOR_GPUS.format('c')})"
