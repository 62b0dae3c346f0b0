# SPDX-License-Identifier: Apache-2.0
"""Command line of the real node: `python -m tools.node up|build|missing`."""

import argparse
import json
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.controlplane import binaries
from tools.controlplane.plane import ComponentFailed, Plane, print_progress
from tools.node import image, programs
from tools.node.configuration import KubeletOptions
from tools.node.gpus import real_devices, start_agent, start_scheduler
from tools.node.node import Node, NodeFailed
from tools.node.space import SpaceFailed
from tools.standin import HostError, Standin, StandinUnavailable

FAILURES = (
    binaries.PlaneUnavailable, ComponentFailed, NodeFailed, SpaceFailed, HostError, StandinUnavailable, ValueError,
)  # fmt: skip
ROOT = Path(__file__).parents[2]
DEFAULT_HOST = "small-2numa"
PODS_BY = {
    "dovetail": "Dovetail places pods that name it, as this one does:",
    "stock": "kube-scheduler places pods.",
    "none": "No scheduler runs, so this one names its node:",
}
USE = """\
The node {name} is Ready: Kubernetes {version}, containerd {containerd}, {numa} NUMA nodes. Logs: {work_dir}
{gpus}

export KUBECONFIG={kubeconfig}
export PATH={bin_dir}:$PATH

The one image, {image}, prints the resources of its container. {pods_by}
  kubectl run show --image={image} --image-pull-policy=Never --overrides='{overrides}' -- show
  sleep 3 && kubectl logs show
A program on the node, an agent for instance (its own /var/lib/kubelet, /var/run/cdi and /run/containerd):
  nsenter --mount=/proc/{pid}/ns/mnt --pid=/proc/{pid}/ns/pid -- COMMAND
Ctrl-C ends all of it.
"""


def main() -> int:
    defaults = KubeletOptions()
    parser = argparse.ArgumentParser(prog="python -m tools.node", description="A real node on a real control plane")
    commands = parser.add_subparsers(dest="command", required=True)
    up_parser = commands.add_parser("up", help="start a plane and a node on it, and keep them until Ctrl-C")
    up_parser.add_argument("--name", default="real-node", help="of the Node object")
    up_parser.add_argument("--numa-nodes", type=int, default=2, help="how many the kubelet sees; 0: the machine's own")
    up_parser.add_argument(
        "--topology-policy", default=defaults.topology_manager_policy, help="of the topology manager"
    )
    up_parser.add_argument("--topology-scope", default=defaults.topology_manager_scope, choices=("container", "pod"))
    up_parser.add_argument("--cpu-policy", default=defaults.cpu_manager_policy, choices=("none", "static"))
    up_parser.add_argument("--reserved-cpus", default=defaults.reserved_cpus, help='a list such as "0"')
    up_parser.add_argument(
        "--gpus", default=DEFAULT_HOST, help="a machine of tools.standin, which `dovetail agent` offers; none: no GPUs"
    )
    up_parser.add_argument("--scheduler", default="dovetail", choices=("dovetail", "stock", "none"))
    commands.add_parser("build", help="build the programs if the cache lacks them, and print the PATH that has them")
    commands.add_parser("missing", help="print what this machine lacks to run a node; exit status 1 if anything")
    arguments = parser.parse_args()
    try:
        match arguments.command:
            case "up":
                return up(arguments)
            case "missing":
                return missing()
            case _:
                binaries.build(print_progress)
                print(programs.build(print_progress))
                return 0
    except FAILURES as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def missing() -> int:
    """Print what this machine lacks, one line each."""
    lacking = programs.missing()
    for line in lacking:
        print(f"error: a real node needs {line}", file=sys.stderr)
    return bool(lacking)


def up(arguments: argparse.Namespace) -> int:
    """Run a plane and a node in the foreground until SIGINT or SIGTERM."""
    if missing():
        return 1
    options = KubeletOptions(
        topology_manager_policy=arguments.topology_policy,
        topology_manager_scope=arguments.topology_scope,
        cpu_manager_policy=arguments.cpu_policy,
        reserved_cpus=arguments.reserved_cpus,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            work_dir = Path(stack.enter_context(TemporaryDirectory(prefix="dovetail-node-logs-")))
            plane = stack.enter_context(Plane(scheduler=arguments.scheduler == "stock", work_dir=work_dir / "plane"))
            node = stack.enter_context(
                Node(
                    plane,
                    name=arguments.name,
                    kubelet=options,
                    numa_nodes=arguments.numa_nodes or None,
                    work_dir=work_dir / "node",
                )
            )
            gpus = arguments.gpus != "none"
            if gpus:
                _offer_gpus(node, arguments.gpus, work_dir)
            if arguments.scheduler == "dovetail":
                stack.callback(start_scheduler(plane, work_dir / "scheduler.log").kill)
            text = USE.format(
                gpus=f"GPUs: {arguments.gpus}, a stand-in; `kubectl get gpunodes` shows them." if gpus else "No GPUs.",
                name=node.name,
                version=binaries.KUBERNETES_VERSION,
                containerd=programs.CONTAINERD_VERSION,
                numa=arguments.numa_nodes or "its own",
                work_dir=work_dir,
                kubeconfig=plane.kubeconfig,
                bin_dir=plane.bin_dir,
                image=image.NAME,
                pods_by=PODS_BY[arguments.scheduler],
                overrides=json.dumps({"spec": _pod(arguments.scheduler, node.name, gpus)}, separators=(",", ":")),
                pid=node.pids["kubelet"],
            )
            print(text, flush=True)
            signal.pause()
    except KeyboardInterrupt:
        pass
    return 0


def _offer_gpus(node: Node, host: str, work_dir: Path) -> None:
    node.plane.kubectl("apply", "-k", str(ROOT / "deploy/crds"))
    node.plane.kubectl("wait", "--for=condition=Established", "crd/gpunodes.dovetail.dev", "--timeout=30s")
    standin = Standin(work_dir / "host", host)
    real_devices(standin.dev)
    start_agent(node, standin, work_dir / "state", log=work_dir / "agent.log")


def _pod(scheduler: str, node: str, gpus: bool) -> dict[str, object]:
    """What makes the pod to try land on the node, with GPUs where it has some."""
    where: dict[str, dict[str, object]] = {"none": {"nodeName": node}, "dovetail": {"schedulerName": "dovetail"}}
    spec = where.get(scheduler, {})
    if gpus:
        container = {"name": "show", "image": image.NAME, "imagePullPolicy": "Never", "args": ["show"]}
        spec["containers"] = [container | {"resources": {"limits": {"nvidia.com/gpu": "2"}}}]
    return spec


if __name__ == "__main__":
    sys.exit(main())
