# SPDX-License-Identifier: Apache-2.0
"""The compared schedulers, and the command that starts each as a process on a plane.

Rules: all of them use the same kubeconfig, without leader election, own endpoints or a limit on requests per second.
All other settings are the defaults. They authenticate as a service account with all rights, like a scheduler in the
cluster. A client certificate would be verified again with every request, which takes a seventh of the API server's
time.
"""

import json
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from benchmarks.live.null_binder import SCHEDULER_NAME
from benchmarks.live.scenario import NAMESPACE
from tools.controlplane.components import FEATURE_GATES
from tools.controlplane.plane import Plane

DOVETAIL = (
    f"{shlex.quote(str(Path(sys.executable).with_name('dovetail')))} scheduler --no-leader-elect --listen '' "
    f"--recording {shlex.quote(str(Path(tempfile.gettempdir()) / 'dovetail-benchmark-recording'))}"
)
SERVICE_ACCOUNT = "scheduler"
NULL_BINDER = (sys.executable, "-m", "benchmarks.live.null_binder")


class Contestant(Struct, frozen=True):
    """A scheduler. Its pods have `scheduler_name`. `argv` returns its command line for a started plane and a
    kubeconfig."""

    title: str
    scheduler_name: str
    argv: Callable[[Plane, Path], list[str]]


def contestants(dovetail: str = DOVETAIL) -> dict[str, Contestant]:
    """All contestants by name. `dovetail` is the command to which `--kubeconfig FILE` is added."""

    def python(*command: str) -> Callable[[Plane, Path], list[str]]:
        return lambda plane, kubeconfig: [*command, "--kubeconfig", str(kubeconfig)]

    return {
        "stock": Contestant("kube-scheduler", "default-scheduler", _kube_scheduler),
        "dovetail": Contestant("Dovetail", "dovetail", python(*shlex.split(dovetail))),
        "null": Contestant("binds only", SCHEDULER_NAME, python(*NULL_BINDER)),
        "null-events": Contestant("binds and events only", SCHEDULER_NAME, python(*NULL_BINDER, "--events")),
    }


def log_in(plane: Plane) -> Path:
    """The kubeconfig of a contestant. Raises KubectlFailed."""
    account = f"{NAMESPACE}:{SERVICE_ACCOUNT}"
    plane.kubectl("create", "serviceaccount", SERVICE_ACCOUNT, f"--namespace={NAMESPACE}")
    plane.kubectl(
        "create", "clusterrolebinding", SERVICE_ACCOUNT, "--clusterrole=cluster-admin", f"--serviceaccount={account}"
    )
    return plane.service_account_kubeconfig(NAMESPACE, SERVICE_ACCOUNT)


def _kube_scheduler(plane: Plane, kubeconfig: Path) -> list[str]:
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": str(kubeconfig),
            "contentType": "application/vnd.kubernetes.protobuf",
            "qps": 10_000,
            "burst": 10_000,
        },
        "leaderElection": {"leaderElect": False},
    }
    file = plane.work_dir / "stock.json"
    file.write_text(json.dumps(configuration))
    gates = ",".join(f"{gate}=true" for gate in FEATURE_GATES)
    # Port 0 disables the endpoint.
    return [str(plane.bin_dir / "kube-scheduler"), f"--config={file}", f"--feature-gates={gates}", "--secure-port=0"]
