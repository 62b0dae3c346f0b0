# SPDX-License-Identifier: Apache-2.0
"""GPUStack: what the operator installs. Rules of the structs: see `base`.

GPUStack is ours; its schema is deploy/crds/gpustack.yaml, its reference docs/reference/gpustack.md. The schema has the
defaults that users see; the defaults here are the same, so that a spec from a file, which no API server has seen, means
the same.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from dovetail.kube.objects.base import LabelSelector, ObjectMeta, Quantities, Wire
from dovetail.kube.objects.topology import Condition

DRIVER_PREINSTALLED, DRIVER_CONTAINER = "Preinstalled", "Container"
DEVICE_PLUGIN, DRA, NO_ALLOCATION = "DevicePlugin", "DRA", "None"
SCRAPE_AUTO, SERVICE_MONITOR, ANNOTATIONS, NO_SCRAPE = "Auto", "ServiceMonitor", "Annotations", "None"
WAIT_FOR_JOBS, WAIT_FOR_CHECKPOINT, EVICT = "WaitForJobs", "WaitForCheckpoint", "Evict"


class StackImage(Wire, frozen=True):
    """`digest` (sha256:...) wins over `tag`; with neither it is the tag of this release. An empty `repository` is the
    operator's own image."""

    repository: str = ""
    tag: str = ""
    digest: str = ""
    pull_policy: str = ""
    pull_secrets: tuple[str, ...] = ()


class Resources(Wire, frozen=True):
    requests: Quantities = field(default_factory=dict)
    limits: Quantities = field(default_factory=dict)


class SchedulerSpec(Wire, frozen=True):
    """The fields are options of `dovetail scheduler`; what is empty or None is its default. With `views` the running
    scheduler answers commands through the API server, and the API is registered there."""

    enabled: bool = True
    replicas: int = 2
    scheduler_name: str = "dovetail"
    fabric: tuple[str, ...] = ()
    consolidate: int = 0
    quarantine_budget: str = "10%"
    divide_mig: bool = False
    views: bool = True
    resources: Resources = Resources()
    extra_args: tuple[str, ...] = ()


class SharedResource(Wire, frozen=True):
    name: str = "nvidia.com/gpu"
    replicas: int = 2


class PoolSharing(Wire, frozen=True):
    """`strategy`: none, time-slicing or mps, as in the device plugin's configuration."""

    strategy: str = "none"
    resources: tuple[SharedResource, ...] = ()
    fail_requests_greater_than_one: bool | None = None


class PoolMig(Wire, frozen=True):
    """`strategy` is how instances are offered: none, single or mixed. `layout` is the name of a layout as in the label
    nvidia.com/mig.config, "" for what the GPUs have; with `repartition` the scheduler may change idle GPUs."""

    strategy: str = "none"
    layout: str = ""
    repartition: bool = False


class NodePool(Wire, frozen=True):
    """A part of the GPU nodes and how their agents work. `node_selector` None selects all GPU nodes that no other pool
    selects."""

    name: str = "default"
    node_selector: LabelSelector | None = None
    allocation: str = DEVICE_PLUGIN
    sharing: PoolSharing = PoolSharing()
    mig: PoolMig = PoolMig()
    labels: bool = True
    processes: bool = False
    extra_args: tuple[str, ...] = ()


class AgentSpec(Wire, frozen=True):
    """`find_gpus`: a pod looks once per boot for GPUs on each node without a label that reports them."""

    enabled: bool = True
    find_gpus: bool = True
    pools: tuple[NodePool, ...] = ()
    topology_objects: bool = True
    kubelet_certificate: bool = False
    resources: Resources = Resources()


class AgentPlanesSpec(Wire, frozen=True):
    """The process that serves software agents' own endpoints, `dovetail plane serve`."""

    enabled: bool = False
    resources: Resources = Resources()
    extra_args: tuple[str, ...] = ()


class PublishSpec(Wire, frozen=True):
    """Whether a Prometheus may read the history from the collector: for requests with the token that the Secret
    `token_secret` has as `token`; "" for none. `every` is how often it is published, as 10m."""

    token_secret: str = ""
    every: str = "10m"


class HistorySpec(Wire, frozen=True):
    """The collector of the history, `dovetail collector`, and its volume. `storage_class` "" is that of the cluster.
    `days` is for how long all is kept, `hourly_days` for how long use is kept by the hour. `prices` is a ConfigMap with
    files of prices, "" for none."""

    enabled: bool = False
    storage: str = "20Gi"
    storage_class: str = ""
    days: int = 400
    hourly_days: int = 35
    prices: str = ""
    publish: PublishSpec = PublishSpec()
    resources: Resources = Resources()
    extra_args: tuple[str, ...] = ()


class IdleSpec(Wire, frozen=True):
    """The policy about workloads that leave their GPUs idle, `dovetail idle-policy`. Times are such as 1h30m."""

    enabled: bool = False
    notify_after: str = "1h"
    act_after: str = "4h"
    grace: str = "1h"
    acts_per_hour: int = 10
    exempt_namespaces: tuple[str, ...] = ()
    resources: Resources = Resources()


class DashboardSpec(Wire, frozen=True):
    """The web pages, `dovetail dashboard`. They show what the running scheduler answers. With `actions` users may
    change the cluster on them, each with the own rights."""

    enabled: bool = False
    replicas: int = 1
    actions: bool = False
    resources: Resources = Resources()


class DriverSpec(Wire, frozen=True):
    """`image` names a driver container by digest (repository@sha256:...); required in mode Container."""

    mode: str = DRIVER_PREINSTALLED
    image: str = ""
    minimum_version: str = ""


class RuntimeSpec(Wire, frozen=True):
    """`create_class`: the RuntimeClass is made where it is missing. `configure`: an image by digest of NVIDIA's
    container toolkit, which changes the container runtime of each node; "" changes no node."""

    class_name: str = "nvidia"
    create_class: bool = True
    cdi: bool = True
    configure: str = ""


class MetricsSpec(Wire, frozen=True):
    """`scrape`: how Prometheus finds scheduler, agents and exporters. Auto is ServiceMonitor where the cluster has that
    kind, else Annotations."""

    scrape: str = SCRAPE_AUTO
    interval_seconds: int = 15
    rules: bool = True
    dashboards: bool = True


class Canary(Wire, frozen=True):
    nodes: int = 1
    soak_seconds: int = 120


class UpgradeSpec(Wire, frozen=True):
    """`max_nodes` and `max_gpus` (a number, or a part such as 10%) bound what is out of service at a time, in the
    cluster, in each pool, and `max_nodes_per_rack` in each rack (label `rack_label`). `drain` is how a node gets
    empty: WaitForJobs, WaitForCheckpoint (jobs that saved their work are moved) or Evict. A node that is not empty
    after `deadline_seconds` waits for the next round; one that is not ready `ready_seconds` after its change has
    failed, and with `rollback` all nodes go back."""

    paused: bool = False
    canary: Canary = Canary()
    max_nodes: str = "10%"
    max_gpus: str = "10%"
    max_nodes_per_rack: int = 1
    rack_label: str = "dovetail.dev/rack"
    drain: str = WAIT_FOR_JOBS
    deadline_seconds: int = 86_400
    ready_seconds: int = 600
    rollback: bool = True


class ValidationSpec(Wire, frozen=True):
    """A pod that goes through scheduler, agent and kubelet on each node. An empty `image` is Dovetail's own."""

    enabled: bool = True
    image: str = ""
    command: tuple[str, ...] = ()
    gpus: int = 1
    timeout_seconds: int = 300


class StackSpec(Wire, frozen=True):
    """`startup_taint`: nodes that are not validated have the taint dovetail.dev/not-ready:NoSchedule. `take_over`: the
    components of NVIDIA's stack that Dovetail replaces; the others are left to it where they run."""

    image: StackImage = StackImage()
    scheduler: SchedulerSpec = SchedulerSpec()
    agent: AgentSpec = AgentSpec()
    agent_planes: AgentPlanesSpec = AgentPlanesSpec()
    history: HistorySpec = HistorySpec()
    idle: IdleSpec = IdleSpec()
    dashboard: DashboardSpec = DashboardSpec()
    driver: DriverSpec = DriverSpec()
    runtime: RuntimeSpec = RuntimeSpec()
    metrics: MetricsSpec = MetricsSpec()
    upgrade: UpgradeSpec = UpgradeSpec()
    validation: ValidationSpec = ValidationSpec()
    startup_taint: bool = True
    take_over: tuple[str, ...] = ()


class ComponentStatus(Wire, frozen=True):
    """A Deployment, DaemonSet or StatefulSet: how many pods it wants, how many are ready, and why others are not."""

    name: str = ""
    kind: str = ""
    image: str = ""
    version: str = ""
    desired: int = 0
    ready: int = 0
    message: str = ""


class NodeCounts(Wire, frozen=True):
    """GPU nodes and GPUs: all, validated, in maintenance, quarantined for repair; and nodes by step."""

    nodes: int = 0
    ready: int = 0
    maintenance: int = 0
    repair: int = 0
    gpus: int = 0
    gpus_ready: int = 0
    gpus_in_repair: int = 0
    steps: dict[str, int] = field(default_factory=dict)


class BlockedNode(Wire, frozen=True):
    """A GPU node that is not ready: at which step, why, since when, and what to do."""

    name: str = ""
    pool: str = ""
    step: str = ""
    reason: str = ""
    message: str = ""
    action: str = ""
    since: datetime | None = None


class ForeignComponent(Wire, frozen=True):
    """A part of NVIDIA's stack that runs here: `component` from the table in operator/coexistence."""

    component: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    version: str = ""
    managed_by: str = ""
    nodes: int = 0
    taken_over: bool = False


class RolloutStatus(Wire, frozen=True):
    """The change that is being brought to nodes. `phase`: Canary, Rolling, Paused, Done, Failed or RolledBack."""

    revision: str = ""
    previous: str = ""
    phase: str = ""
    reason: str = ""
    started: datetime | None = None
    total: int = 0
    updated: int = 0
    failed: tuple[str, ...] = ()
    working: tuple[str, ...] = ()


class StackCondition(Condition, frozen=True):
    """`observed_generation`: the generation of the spec that it is about."""

    observed_generation: int = 0


class StackStatus(Wire, frozen=True):
    observed_generation: int = 0
    version: str = ""
    conditions: tuple[StackCondition, ...] = ()
    components: tuple[ComponentStatus, ...] = ()
    nodes: NodeCounts = NodeCounts()
    blocked: tuple[BlockedNode, ...] = ()
    foreign: tuple[ForeignComponent, ...] = ()
    rollout: RolloutStatus | None = None


class StackMeta(ObjectMeta, frozen=True):
    generation: int = 0
    finalizers: tuple[str, ...] = ()


class GPUStack(Wire, frozen=True):
    metadata: StackMeta = StackMeta()
    spec: StackSpec = StackSpec()
    status: StackStatus = StackStatus()
