# SPDX-License-Identifier: Apache-2.0
"""Workload objects that own pods: how many pods they make, and in which order. Rules of the structs: see `objects`."""

from __future__ import annotations

from msgspec import field

from dovetail.kube.objects.base import ObjectMeta, Wire


class JobSpec(Wire, frozen=True):
    active_deadline_seconds: int | None = None
    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    backoff_limit_per_index: int | None = None


class Job(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()


class DependsOn(Wire, frozen=True):
    name: str = ""


class ReplicatedJob(Wire, frozen=True):
    name: str = ""
    replicas: int = 1
    template: Job = Job()
    depends_on: tuple[DependsOn, ...] = ()


class StartupPolicy(Wire, frozen=True):
    startup_policy_order: str = "AnyOrder"


class JobSetSpec(Wire, frozen=True):
    replicated_jobs: tuple[ReplicatedJob, ...] = ()
    startup_policy: StartupPolicy = StartupPolicy()


class JobSet(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: JobSetSpec = JobSetSpec()


class SubGroupPolicy(Wire, frozen=True):
    sub_group_policy_type: str = "LeaderWorker"
    sub_group_size: int | None = None


class LeaderWorkerTemplate(Wire, frozen=True):
    size: int = 1
    sub_group_policy: SubGroupPolicy | None = None


class LeaderWorkerSetSpec(Wire, frozen=True):
    replicas: int = 1
    leader_worker_template: LeaderWorkerTemplate = LeaderWorkerTemplate()
    startup_policy: str = "LeaderCreated"


class LeaderWorkerSet(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaderWorkerSetSpec = LeaderWorkerSetSpec()


class PlacementPolicy(Wire, frozen=True):
    type: str = "None"
    topology: str = ""


class DisaggregatedRole(Wire, frozen=True):
    name: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaderWorkerSetSpec = LeaderWorkerSetSpec()


class DisaggregatedSetSpec(Wire, frozen=True):
    roles: tuple[DisaggregatedRole, ...] = ()
    placement_policy: PlacementPolicy | None = None


class DisaggregatedSet(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: DisaggregatedSetSpec = DisaggregatedSetSpec()


class RoleSpec(Wire, frozen=True):
    name: str = ""
    replicas: int | None = None
    pod_group_size: int | None = None


class RoleSetSpec(Wire, frozen=True):
    roles: tuple[RoleSpec, ...] = ()


class RoleSet(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: RoleSetSpec = RoleSetSpec()


class PodSetSpec(Wire, frozen=True):
    pod_group_size: int = 1


class PodSet(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSetSpec = PodSetSpec()


class ReplicaSpec(Wire, frozen=True):
    replicas: int = 1


class SchedulingPolicy(Wire, frozen=True):
    min_available: int | None = None


class RunPolicy(Wire, frozen=True):
    active_deadline_seconds: int | None = None
    scheduling_policy: SchedulingPolicy | None = None


class ElasticPolicy(Wire, frozen=True):
    min_replicas: int | None = None


class TrainingSpec(Wire, frozen=True):
    """One of the maps of replica specs is present: each kind has its own name for it."""

    tf_replica_specs: dict[str, ReplicaSpec] = field(default_factory=dict)
    pytorch_replica_specs: dict[str, ReplicaSpec] = field(default_factory=dict)
    mpi_replica_specs: dict[str, ReplicaSpec] = field(default_factory=dict)
    xgb_replica_specs: dict[str, ReplicaSpec] = field(default_factory=dict)
    paddle_replica_specs: dict[str, ReplicaSpec] = field(default_factory=dict)
    jax_replica_specs: dict[str, ReplicaSpec] = field(default_factory=dict)
    run_policy: RunPolicy = RunPolicy()
    elastic_policy: ElasticPolicy = ElasticPolicy()
    launcher_creation_policy: str = "AtStartup"
    wait_for_workers: bool = False


class TrainingJob(Wire, frozen=True):
    """All job kinds of kubeflow.org."""

    metadata: ObjectMeta = ObjectMeta()
    spec: TrainingSpec = TrainingSpec()


class WorkerGroup(Wire, frozen=True):
    group_name: str = ""
    replicas: int = 0
    min_replicas: int = 0
    num_of_hosts: int = 1
    suspend: bool = False


class RayClusterSpec(Wire, frozen=True):
    worker_group_specs: tuple[WorkerGroup, ...] = ()


class RayCluster(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: RayClusterSpec = RayClusterSpec()
