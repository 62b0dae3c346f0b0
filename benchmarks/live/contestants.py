# SPDX-License-Identifier: Apache-2.0
"""Who is compared: how each scheduler is started, as a plain process, on a plane.

Rules: all of them have the same kubeconfig (all rights, so authorization costs each the same), no leader election, no
endpoints of their own and no limit on requests a second; everything else is as each of them comes.
"""

import json
import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.live.null_binder import SCHEDULER_NAME
from tools.controlplane.components import FEATURE_GATES
from tools.controlplane.plane import Plane

DOVETAIL = (
    f"{shlex.quote(str(Path(sys.executable).with_name('dovetail')))} scheduler --no-leader-elect --listen '' "
    f"--recording {shlex.quote(str(Path(tempfile.gettempdir()) / 'dovetail-benchmark-recording'))}"
)
NULL_BINDER = (sys.executable, "-m", "benchmarks.live.null_binder")


@dataclass(frozen=True)
class Contestant:
    """`scheduler_name` is what its pods name; `argv` is its command line on a started plane."""

    title: str
    scheduler_name: str
    argv: Callable[[Plane], list[str]]


def contestants(dovetail: str = DOVETAIL) -> dict[str, Contestant]:
    """All contestants by name. `dovetail` is the command to which `--kubeconfig FILE` is added."""

    def python(*command: str) -> Callable[[Plane], list[str]]:
        return lambda plane: [*command, "--kubeconfig", str(plane.kubeconfig)]

    return {
        "stock": Contestant("kube-scheduler", "default-scheduler", _kube_scheduler),
        "dovetail": Contestant("Dovetail", "dovetail", python(*shlex.split(dovetail))),
        "null": Contestant("binds only", SCHEDULER_NAME, python(*NULL_BINDER)),
        "null-events": Contestant("binds and events only", SCHEDULER_NAME, python(*NULL_BINDER, "--events")),
    }


def _kube_scheduler(plane: Plane) -> list[str]:
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": str(plane.kubeconfig),
            "contentType": "application/vnd.kubernetes.protobuf",
            "qps": 10_000,
            "burst": 10_000,
        },
        "leaderElection": {"leaderElect": False},
    }
    file = plane.work_dir / "stock.json"
    file.write_text(json.dumps(configuration))
    gates = ",".join(f"{gate}=true" for gate in FEATURE_GATES)
    # Port 0 is no endpoint at all.
    return [str(plane.bin_dir / "kube-scheduler"), f"--config={file}", f"--feature-gates={gates}", "--secure-port=0"]
