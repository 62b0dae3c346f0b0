# SPDX-License-Identifier: Apache-2.0
"""prometheus-adapter, pinned and built from source, as the API of external metrics of a plane.

Rules: it is registered when `start` returns, and answers once it has seen the series in its Prometheus. `stop`, or any
end of this process, ends it; then the plane has no such API again. It runs with all rights.
"""

import re
import socket
import tempfile
from pathlib import Path
from typing import Any, Self

import yaml

from tools.controlplane import binaries
from tools.controlplane.binaries import Module, Report
from tools.controlplane.children import Children, tail
from tools.controlplane.plane import Plane, print_progress
from tools.controlplane.started import Started

FOLDER = Path(__file__).parent
_MODULE = "sigs.k8s.io/prometheus-adapter"
VERSION = re.findall(rf"\s{_MODULE} (v\S+)", (FOLDER / "go.mod").read_text())[0]
PACKAGES = {"adapter": f"{_MODULE}/cmd/adapter"}
MODULE = Module(
    f"prometheus-adapter {VERSION}",
    f"prometheus-adapter-{VERSION}",
    FOLDER,
    ("-mod=readonly", "-trimpath", "-ldflags=-s -w"),
    binaries.GO_ENVIRONMENT,
)
NAME, NAMESPACE = "external-metrics", "kube-system"
GROUP, API_VERSION = "external.metrics.k8s.io", "v1beta1"


def is_built() -> bool:
    """Whether the cache has the program. A cold build takes longer than most tests together."""
    return binaries.binaries_dir(PACKAGES, MODULE).is_dir()


def build(report: Report) -> Path:
    """The folder of the program, which is built if the cache lacks it. Raises PlaneUnavailable."""
    return binaries.build(report, PACKAGES, MODULE)


class PrometheusAdapter(Started):
    """The adapter of a plane, not started yet. Use it as a context manager, or call `start` and `stop`.

    prometheus: the URL of the Prometheus that it asks; rules: its configuration, YAML.
    """

    def __init__(self, plane: Plane, prometheus: str, rules: str, report: Report = print_progress) -> None:
        self._plane = plane
        self._prometheus = prometheus
        self._rules = rules
        self._report = report
        self._children = Children()

    def start(self) -> Self:
        """Build the program if the cache lacks it (minutes), start and register it. Raises PlaneUnavailable."""
        program = build(self._report) / "adapter"
        scratch = Path(tempfile.mkdtemp(prefix="dovetail-adapter-"))
        self._log = scratch / "adapter.log"
        self._children.open(scratch)
        # An EndpointSlice takes no address of the loopback interface.
        address = _own_address()
        with socket.socket() as free:
            free.bind((address, 0))
            port = free.getsockname()[1]
        (scratch / "rules.yaml").write_text(self._rules)
        rights = [f"--{of}-kubeconfig={self._plane.kubeconfig}" for of in ("lister", "authentication", "authorization")]
        argv = [
            str(program), f"--prometheus-url={self._prometheus}", f"--config={scratch / 'rules.yaml'}",
            f"--bind-address={address}", f"--secure-port={port}", f"--cert-dir={scratch}",
            "--metrics-relist-interval=2s", *rights,
        ]  # fmt: skip
        self._objects = yaml.safe_dump_all(_registration(address, port))
        try:
            self._children.start("adapter", argv, self._log)
            self._plane.kubectl("apply", "-f", "-", input=self._objects)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End it and remove what registers it."""
        self._plane.kubectl("delete", "--ignore-not-found", "-f", "-", input=self._objects)
        self._children.close()

    @property
    def log(self) -> str:
        """The end of its log."""
        return tail(self._log.read_text(errors="replace"))


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])


def _registration(address: str, port: int) -> list[dict[str, Any]]:
    """The adapter as an API of the plane, and the right of the HPA controller to read it."""
    meta = {"name": NAME, "namespace": NAMESPACE}
    rbac = "rbac.authorization.k8s.io"
    service = {"name": NAME, "namespace": NAMESPACE, "port": 443}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": [{"port": 443}]}},
        {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {**meta, "labels": {"kubernetes.io/service-name": NAME}},
            "ports": [{"name": "", "port": port}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": f"{API_VERSION}.{GROUP}"},
            "spec": {
                "group": GROUP, "version": API_VERSION, "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": True, "service": service,
            },
        },
        {
            "apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": NAME},
            "rules": [{"apiGroups": [GROUP], "resources": ["*"], "verbs": ["get", "list"]}],
        },
        {
            "apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": NAME},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": "horizontal-pod-autoscaler", "namespace": "kube-system"}],
        },
    ]  # fmt: skip
