# SPDX-License-Identifier: Apache-2.0
"""How many pods the objects of batch work make, and how many of them start together; for those that serve see
`serving`.

Rules
- A Job is a gang where it is indexed and runs all its indices at once; else its pods are on their own, and the Job is
  read only for its queue, its limits and its annotations: the pods do not wait for that.
- A Job with a limit of failures for each index goes on with the indices that are left.
- Controllers that make some pods only when others run are respected: parts in order become gangs of their own, and
  where the first pod must run before the rest is made, the minimum is one.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.model import Problem
from dovetail.kube.gangs.declared import DeclaredPart
from dovetail.kube.objects.owners import Job, JobSet, RayCluster, TrainingJob

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
NODE_SELECTOR_STRATEGY = "alpha.jobset.sigs.k8s.io/node-selector"
_RAY_HEAD = "headgroup"


class GangSize(Struct, frozen=True):
    """How many pods an object makes and how many must start together (see `gangs.Declared`). `survives` and `required`
    are as in Gang. `problem`: what the object declares cannot be."""

    min_field: str
    min_count: int = 0
    pods: int | None = None
    parts: tuple[DeclaredPart, ...] = ()
    together: bool = True
    survives: bool = False
    required: tuple[str, ...] = ()
    problem: Problem | None = None


def job(obj: Job) -> GangSize | None:
    """A Job that runs all its indices at once; None for a work queue."""
    spec = obj.spec
    # As the Job controller of 1.36 did for its own PodGroups (KEP-5547): fewer pods than indices are a work queue.
    if spec.completion_mode == "Indexed" and spec.completions == spec.parallelism > 1:
        by_index = spec.backoff_limit_per_index is not None
        return GangSize("spec.parallelism", spec.parallelism, spec.parallelism, survives=by_index)
    return None


def jobset(obj: JobSet) -> GangSize:
    """All pods of a JobSet, by replicated job."""
    spec = obj.spec
    in_order = spec.startup_policy.startup_policy_order == "InOrder" or any(r.depends_on for r in spec.replicated_jobs)
    parts, leaders_first = [], False
    for replicated in spec.replicated_jobs:
        job = replicated.template.spec
        pods = replicated.replicas * min(job.parallelism, job.completions or job.parallelism)
        marks = obj.metadata.annotations, replicated.template.metadata.annotations
        # Its webhook refuses all pods but the leader of each Job until that one is bound.
        leader_first = any(EXCLUSIVE in one for one in marks) and all(
            NODE_SELECTOR_STRATEGY not in one for one in marks
        )
        leaders_first |= leader_first
        parts.append(DeclaredPart(replicated.name, min(pods, 1) if leader_first else pods, pods))
    if len(parts) == 1:
        return GangSize("spec.replicatedJobs", parts[0].min_count, parts[0].pods)
    return GangSize("spec.replicatedJobs", parts=tuple(parts), together=not (in_order or leaders_first))


def training(obj: TrainingJob) -> GangSize:
    """The replicas of a job of Kubeflow, by type."""
    spec = obj.spec
    maps = (
        spec.tf_replica_specs,
        spec.pytorch_replica_specs,
        spec.mpi_replica_specs,
        spec.xgb_replica_specs,
        spec.paddle_replica_specs,
        spec.jax_replica_specs,
    )
    replicas = {name.lower(): replica.replicas for specs in maps for name, replica in specs.items()}
    policy = spec.run_policy.scheduling_policy
    at_least = policy.min_available if policy is not None else None
    launcher_last = spec.wait_for_workers or spec.launcher_creation_policy == "WaitForWorkersReady"
    if at_least is not None and not launcher_last:
        return GangSize("spec.runPolicy.schedulingPolicy.minAvailable", at_least, sum(replicas.values()))
    workers = replicas.get("worker", 0)
    fewest = spec.elastic_policy.min_replicas if at_least is None else min(at_least, workers)
    wanted = replicas if fewest is None else {**replicas, "worker": fewest}
    parts = [DeclaredPart(name, wanted[name], count) for name, count in sorted(replicas.items())]
    if len(parts) == 1:
        return GangSize("spec replicas", parts[0].min_count, parts[0].pods)
    return GangSize("spec replicas", parts=tuple(parts), together=not launcher_last)


def ray_cluster(obj: RayCluster) -> GangSize:
    """The head and the minimum of each worker group."""
    parts = [DeclaredPart(_RAY_HEAD, 1, 1)]
    for group in obj.spec.worker_group_specs:
        # Of a group that may grow and shrink only the minimum has to start with the head.
        count = 0 if group.suspend else group.num_of_hosts * (group.min_replicas or group.replicas)
        parts.append(DeclaredPart(group.group_name, count))
    return GangSize("spec.workerGroupSpecs", parts=tuple(parts))
