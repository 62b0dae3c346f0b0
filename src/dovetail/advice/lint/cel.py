# SPDX-License-Identifier: Apache-2.0
"""Pieces of the expressions by which rules are said in CEL, over `variables.pod`, a Pod or a pod template."""

ASKS_FOR_GPUS = (
    "has({0}.resources) && has({0}.resources.limits) && {0}.resources.limits.exists(name, "
    "name.matches('^nvidia[.]com/(gpu|mig-[^/]+)([.]shared)?$'))"
)
"""Of a container of this name."""
OF_A_DAEMON_SET = (
    "has(variables.pod.metadata.ownerReferences) && "
    "variables.pod.metadata.ownerReferences.exists(o, o.kind == 'DaemonSet')"
)


def of_gpu_containers(passes: str) -> str:
    """True of a pod if this is true of each container `c` of it that asks for GPUs."""
    return f"variables.pod.spec.containers.all(c, !({ASKS_FOR_GPUS.format('c')}) || ({passes}))"


def without_gpus_or(passes: str) -> str:
    """True of a pod if this is true of it, or no container of it asks for GPUs."""
    return f"({passes}) || !variables.pod.spec.containers.exists(c, {ASKS_FOR_GPUS.format('c')})"
