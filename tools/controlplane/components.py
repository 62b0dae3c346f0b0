# SPDX-License-Identifier: Apache-2.0
"""The command lines of etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

Rules: everything listens on loopback, etcd on a socket that only this user can reach. Authorization is Node,RBAC as in
a real cluster. Two deliberate differences keep Node objects without a kubelet schedulable: `node-lifecycle-controller`
runs only if it is named, and an admission plugin whose additions only a controller removes (`FINISHED_BY`) is on only
if that controller runs.
Flags are those of the pinned Kubernetes; only starting the processes verifies them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
HOST = "127.0.0.1"
# Of the Service `kubernetes`, the first of the range below; only pods of a real node (tools/node) reach it.
SERVICE_ADDRESS = "10.96.0.1"
# Further host names in the serving certificate, besides HOST.
SERVING_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
# The user of the aggregation layer, as kubeadm names it.
FRONT_PROXY = "front-proxy-client"
ISSUER = "https://kubernetes.default.svc"

# In 1.37 the first two are beta and off by default, the others alpha. CompositePodGroup needs the two before it.
FEATURE_GATES = (
    "GenericWorkload",
    "DRAWorkloadResourceClaims",
    "TopologyAwareWorkloadScheduling",
    "CompositePodGroup",
)
RUNTIME_CONFIG = ("scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha3")

# admission plugin -> the controller that removes what the plugin adds or waits for: a Pod's missing ServiceAccount, a
# NoSchedule taint on every new Node, a finalizer.
FINISHED_BY = {
    "ServiceAccount": "serviceaccount-controller",
    "TaintNodesByCondition": "node-lifecycle-controller",
    "PodGroupProtection": "podgroup-protection-controller",
    "StorageObjectInUseProtection": "persistentvolumeclaim-protection-controller",
}
NOT_BY_DEFAULT = "node-lifecycle-controller"

# Paths that kube-controller-manager and kube-scheduler serve without authorization: they cannot authenticate clients.
OPEN_PATHS = "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics"

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
"""


class Options(Struct, frozen=True):
    """Options of a plane.

    features: the workload API (`RUNTIME_CONFIG`) is served and its gates (`FEATURE_GATES`) are on.
    controllers: True for all except node-lifecycle-controller, a list of names for only these, False for no
        kube-controller-manager. Pods need no ServiceAccount if serviceaccount-controller does not run.
    fair_queueing: API priority and fairness. False leaves only the (raised) in-flight limits, as benchmarks need.
    audit_log: where kube-apiserver writes one JSON line per finished write request (level Metadata).
    extra_flags: component -> flags to add after all others, e.g. {"kube-apiserver": ["--etcd-compaction-interval=1s"]}.
        Raises ValueError for an unknown component.
    """

    features: bool = True
    controllers: bool | Sequence[str] = True
    fair_queueing: bool = True
    audit_log: Path | None = None
    extra_flags: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := set(self.extra_flags) - set(COMPONENTS):
            raise ValueError(f"extra_flags: {sorted(unknown)} are not components; these are: {', '.join(COMPONENTS)}")

    def runs(self, controller: str) -> bool:
        """Whether kube-controller-manager runs this controller."""
        if isinstance(self.controllers, bool):
            return self.controllers and controller != NOT_BY_DEFAULT
        return controller in self.controllers


class Files(Struct, frozen=True):
    """The paths of the files on command lines. `work` has logs, credentials and configuration, `data` is etcd's."""

    work: Path
    data: Path

    def kubeconfig(self, user: str) -> Path:
        """The path of the kubeconfig of a user."""
        return self.work / f"{user}.kubeconfig"

    def pem(self, name: str) -> Path:
        """The path of a certificate or key file: ca, serving, serving-key, service-account-key, admin,
        front-proxy-ca, front-proxy."""
        return self.work / f"{name}.pem"

    @property
    def etcd_url(self) -> str:
        """The URL of etcd for kube-apiserver."""
        return f"unix://{self.data}/client.sock"

    @property
    def audit_policy(self) -> Path:
        """The path of the policy of the audit log."""
        return self.work / "audit-policy.yaml"

    @property
    def scheduler_config(self) -> Path:
        """The path of the KubeSchedulerConfiguration."""
        return self.work / "kube-scheduler.yaml"


def etcd(files: Files) -> list[str]:
    """One member without fsync, since the data is removed with the plane."""
    peer_url = f"unix://{files.data}/peer.sock"
    return [
        "--name=plane",
        f"--data-dir={files.data}/etcd",
        f"--listen-client-urls={files.etcd_url}",
        f"--advertise-client-urls={files.etcd_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=plane={peer_url}",
        "--unsafe-no-fsync",
        "--quota-backend-bytes=8589934592",
        "--log-level=warn",
    ]


def kube_apiserver(files: Files, options: Options, port: int) -> list[str]:
    """The server, with the in-flight limits raised well above the defaults of 400 and 200."""
    flags = [
        *_serving(files, port),
        # No client uses it, but without it the server requires a network interface other than loopback.
        f"--advertise-address={HOST}",
        "--endpoint-reconciler-type=none",
        f"--etcd-servers={files.etcd_url}",
        f"--client-ca-file={files.pem('ca')}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={files.pem('service-account-key')}",
        f"--service-account-signing-key-file={files.pem('service-account-key')}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged=true",
        # The aggregation layer: how it authenticates itself to the API servers that it forwards to, and that it finds
        # them by their EndpointSlices, as no kube-proxy serves the addresses of Services here.
        f"--requestheader-client-ca-file={files.pem('front-proxy-ca')}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={files.pem('front-proxy')}",
        f"--proxy-client-key-file={files.pem('front-proxy')}",
        "--enable-aggregator-routing=true",
        # For logs and exec on a real node (tools/node). A Node object without a kubelet does not use it.
        f"--kubelet-client-certificate={files.pem('admin')}",
        f"--kubelet-client-key={files.pem('admin')}",
        "--kubelet-preferred-address-types=InternalIP",
        "--max-requests-inflight=3000",
        "--max-mutating-requests-inflight=1500",
        f"--enable-priority-and-fairness={str(options.fair_queueing).lower()}",
        *_gates(options),
    ]
    unfinished = [plugin for plugin, controller in FINISHED_BY.items() if not options.runs(controller)]
    if unfinished:
        flags.append(f"--disable-admission-plugins={','.join(unfinished)}")
    if options.features:
        flags.append("--runtime-config=" + ",".join(f"{version}=true" for version in RUNTIME_CONFIG))
    if options.audit_log:
        flags += [f"--audit-log-path={options.audit_log}", f"--audit-policy-file={files.audit_policy}"]
    return flags


def kube_controller_manager(files: Files, options: Options, port: int) -> list[str]:
    """The controllers, each with its own ServiceAccount as in a real cluster."""
    chosen = f"*,-{NOT_BY_DEFAULT}" if isinstance(options.controllers, bool) else ",".join(options.controllers)
    return [
        *_serving(files, port),
        OPEN_PATHS,
        f"--kubeconfig={files.kubeconfig('kube-controller-manager')}",
        "--leader-elect=false",
        f"--controllers={chosen}",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={files.pem('service-account-key')}",
        f"--root-ca-file={files.pem('ca')}",
        # The default of 15 s is for metrics that change slowly; without an HPA it makes no difference.
        "--horizontal-pod-autoscaler-sync-period=1s",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        *_gates(options),
    ]


def kube_scheduler(files: Files, options: Options, port: int) -> list[str]:
    """The stock scheduler. Its settings are in its configuration file."""
    return [*_serving(files, port), OPEN_PATHS, f"--config={files.scheduler_config}", *_gates(options)]


def scheduler_configuration(files: Files, overrides: Mapping[str, object]) -> dict[str, object]:
    """A KubeSchedulerConfiguration whose client is not the bottleneck; top-level `overrides` replace its fields."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": str(files.kubeconfig("kube-scheduler")),
            "contentType": "application/vnd.kubernetes.protobuf",
            "qps": 10_000,
            "burst": 10_000,
        },
        "leaderElection": {"leaderElect": False},
        **overrides,
    }


def _serving(files: Files, port: int) -> list[str]:
    return [
        f"--bind-address={HOST}",
        f"--secure-port={port}",
        # The plane keeps the port bound, so that no other process can take it while this one is down.
        "--permit-port-sharing=true",
        f"--tls-cert-file={files.pem('serving')}",
        f"--tls-private-key-file={files.pem('serving-key')}",
    ]


def _gates(options: Options) -> list[str]:
    return ["--feature-gates=" + ",".join(f"{gate}=true" for gate in FEATURE_GATES)] if options.features else []
