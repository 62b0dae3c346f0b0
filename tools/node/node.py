# SPDX-License-Identifier: Apache-2.0
"""A real node: containerd and the kubelet on a plane of tools/controlplane, in separate namespaces.

Rules: a node changes nothing on the machine except its own cgroups, which are removed with it. Several nodes can run at
the same time. A node can simulate more NUMA nodes than the machine has: the kubelet's managers use them, and settings
that the kernel would reject are removed before runc reads them.
"""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Self

import yaml

from dovetail.agent.apis.serving import answers
from dovetail.agent.kubelet import podresources
from dovetail.agent.kubelet.podresources import PodResources
from tools.controlplane.binaries import Report
from tools.controlplane.children import tail
from tools.controlplane.plane import Plane, print_progress
from tools.controlplane.started import Started
from tools.node import configuration, image, programs
from tools.node.configuration import KubeletOptions
from tools.node.space import Space

IMAGE = image.NAME
READY_WITHIN_S = 60.0
REPORT_WITHIN_S = 30.0
POLL_S = 0.1
MEMORY_FREE_BYTES = 2 << 30


class NodeFailed(Exception):
    """A program of the node exited, or was not ready in time. The message has the end of its log."""


class Node(Started):
    """One node of a started plane, not started yet. Use it as a context manager, or call `start` and `stop`.

    All methods except `start` and `stop` need a started node.

    kubelet: options of its kubelet. numa_nodes: number of simulated NUMA nodes; None: those of the machine.
    labels: labels of the Node object at registration. own: additional private directories of the node.
    handlers: programs that containerd executes in place of runc, by name of a RuntimeClass's handler.
    work_dir: directory for logs and configuration files, which is kept; by default they are removed with the node.
    """

    def __init__(
        self,
        plane: Plane,
        *,
        name: str = "real-node",
        kubelet: KubeletOptions | None = None,
        numa_nodes: int | None = 2,
        labels: Mapping[str, str] | None = None,
        own: Sequence[Path] = (),
        handlers: Mapping[str, Path] | None = None,
        work_dir: Path | None = None,
        report: Report = print_progress,
    ) -> None:
        self.plane = plane
        self.name = name
        self._kubelet_options = kubelet or KubeletOptions()
        self._numa_nodes = numa_nodes
        self._labels = labels or {}
        self._own = (*configuration.OWN, *own)
        self._handlers = handlers or {}
        self._asked_work_dir = work_dir
        self._report = report
        self._space: Space | None = None
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> Self:
        """Build what is missing, start the programs and wait until the Node is Ready (about 5 s).

        Raises binaries.PlaneUnavailable if the programs cannot be had, SpaceFailed, NodeFailed, ValueError.
        """
        self._path = programs.build(self._report)
        scratch = Path(tempfile.mkdtemp(prefix="dovetail-node-", dir=_memory()))
        self.work_dir = self._asked_work_dir or scratch
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self._cgroup = f"/{scratch.name}"
        cgroups = [folder / scratch.name for folder, _ in programs.hierarchies()]
        self._space = Space(scratch, cgroups, self._log("namespaces"))
        try:
            for cgroup in cgroups:
                cgroup.mkdir()
            self._space.open(self._own, self._replaced(scratch))
            api_server = self.plane.url.removeprefix("https://")
            # A pod that has begun knows the port of then, so a kubelet that starts again keeps it.
            self._address = programs.address()
            self._port, self._healthz_port = _free_ports(2)
            kubelet = f"{self._address}:{self._port}"
            configuration.write_cni(scratch / "cni", self._program("network"), api_server, kubelet)
            self._snapshotter = programs.snapshotter(scratch)
            settings = configuration.containerd(
                self._program("runtime"), scratch / "cni", self._handlers, self._snapshotter
            )
            (self.work_dir / "containerd.toml").write_text(settings)
            self._execute("containerd", ["containerd", f"--config={self.work_dir / 'containerd.toml'}"])
            self._kubeconfig = self.plane.kubeconfig_for(f"system:node:{self.name}", ["system:nodes"])
            image.write(self._program("pod"), scratch / "image.tar")
            self._await("containerd", lambda: answers(self.outside(configuration.CONTAINERD_SOCKET)))
            self.start_kubelet()
            self.load(scratch / "image.tar")
            self._await("kubelet", self._is_ready)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill all processes in the node, pods too, and remove its files. Its Node object stays in the plane."""
        self._running.clear()
        if self._space:
            self._space.close()
            self._space = None

    def outside(self, path: Path | str) -> Path:
        """The path for this process of a file or socket in one of the node's private directories. Raises ValueError."""
        return self._opened.outside(path)

    def spawn(
        self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None, output: Path | int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program in the node, in / and with this process's environment and `env`. It ends with the node.

        output: a file to append to, or a value for `subprocess.Popen`; by default `<program>.log` in the work_dir.
        The process is a normal child: its process id and signals work as usual.
        """
        environment = os.environ | {"PATH": self._path} | dict(env or {})
        return self._opened.start(argv, environment, self._log(Path(argv[0]).name) if output is None else output)

    def run(self, *argv: str) -> str:
        """Run a program in the node to its end and return its output. Raises NodeFailed."""
        process = self.spawn(argv, output=subprocess.PIPE)
        printed, error_output = process.communicate()
        if process.returncode:
            raise NodeFailed(
                f"{' '.join(argv)} ended with {process.returncode}: {error_output.decode(errors='replace').strip()}"
            )
        return printed.decode()

    def ctr(self, *arguments: str) -> str:
        """Run containerd's `ctr` in the namespace of the kubelet's containers. Raises NodeFailed."""
        return self.run("ctr", f"--address={configuration.CONTAINERD_SOCKET}", "--namespace=k8s.io", *arguments)

    def load(self, archive: Path) -> None:
        """Load an image from an archive of `docker save` or an OCI layout. Raises NodeFailed."""
        self.ctr("images", "import", "--local", f"--snapshotter={self._snapshotter}", str(archive))

    def start_kubelet(self) -> None:
        """Start the kubelet and wait until it answers. Raises NodeFailed."""
        settings = configuration.kubelet(
            self._kubelet_options, self.plane.ca_file, self._cgroup, self._port, self._healthz_port
        )
        path = self.work_dir / "kubelet.yaml"
        path.write_text(yaml.safe_dump(settings))
        labels = ",".join(f"{name}={value}" for name, value in self._labels.items())
        argv = [
            "kubelet",
            f"--config={path}",
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-labels={labels}",
            f"--node-ip={self._address}",
        ]
        self._execute("kubelet", argv)
        self._await("kubelet", self._kubelet_answers)

    def stop_kubelet(self) -> None:
        """Kill the kubelet. Pods go on running."""
        process = self._running.pop("kubelet")
        process.kill()
        process.wait()

    def restart_kubelet(self, options: KubeletOptions | None = None) -> None:
        """Kill the kubelet and start it again, optionally with other options. Raises NodeFailed.

        With other options the state files of its managers are removed, as an administrator has to do.
        """
        self.stop_kubelet()
        if options:
            self._kubelet_options = options
            for name in ("cpu_manager_state", "memory_manager_state"):
                self.outside(configuration.KUBELET_ROOT / name).unlink(missing_ok=True)
        self.start_kubelet()

    @property
    def pod_resources(self) -> PodResources:
        """The client of the kubelet's PodResources API. Use its `socket` for calls without a method."""
        return PodResources(self.outside(podresources.SOCKET))

    @property
    def device_plugins(self) -> Path:
        """The kubelet's folder for sockets of device plugins, as a path for plugins outside the node."""
        return self.outside(configuration.KUBELET_ROOT / "device-plugins")

    def logs(self, namespace: str, pod: str, container: str = "*") -> str:
        """The log of the newest instance of a container, from the kubelet's files; "" if there is none (yet)."""
        folder = self.outside(configuration.POD_LOGS / f"{namespace}_{pod}").parent
        files = sorted(folder.glob(f"{namespace}_{pod}_*/{container}/*.log"), key=lambda file: file.stat().st_mtime_ns)
        # A line: time, stream, F (full) or P (to be continued), text.
        lines = (line.split(" ", 3) for line in files[-1].read_text().splitlines()) if files else ()
        return "".join(text + ("\n" if flag == "F" else "") for _, _, flag, text in lines)

    def resources_of(self, namespace: str, pod: str, container: str = "*") -> dict[str, Any]:
        """Wait for the report of a container that runs `show` about its resources: see tools/node/pod/main.go.

        Raises NodeFailed if there is none within 30 s.
        """
        deadline = time.monotonic() + REPORT_WITHIN_S
        while not (text := self.logs(namespace, pod, container)):
            if time.monotonic() > deadline:
                raise NodeFailed(f"the pod {namespace}/{pod} wrote nothing within {REPORT_WITHIN_S:.0f} s")
            time.sleep(POLL_S)
        result: dict[str, Any] = json.loads(text.splitlines()[0])
        return result

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of containerd and the kubelet, by name."""
        return {name: process.pid for name, process in self._running.items()}

    @property
    def _opened(self) -> Space:
        if not self._space:
            raise RuntimeError(f"the node {self.name} is not started, or it is stopped")
        return self._space

    def _replaced(self, scratch: Path) -> dict[Path, Path]:
        """Write the replacements of files of the machine. Returns the path of each replacement by original."""
        replaced = {sysctl: scratch / sysctl.name for sysctl in configuration.SYSCTLS}
        for sysctl, value in configuration.SYSCTLS.items():
            replaced[sysctl].write_text(f"{value}\n")
        if self._numa_nodes is not None:
            replaced[configuration.NUMA] = scratch / "numa"
            configuration.write_numa(scratch / "numa", self._numa_nodes)
        return replaced

    def _program(self, name: str) -> Path:
        found = shutil.which(name, path=self._path)
        assert found, name
        return Path(found)

    def _log(self, name: str) -> Path:
        return self.work_dir / f"{name}.log"

    def _execute(self, name: str, argv: Sequence[str]) -> None:
        self._running[name] = self.spawn(argv)

    def _await(self, name: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while not condition():
            for suspect, process in self._running.items():
                if process.poll() is not None:
                    raise self._failure(suspect, f"ended with status {process.returncode}")
            if time.monotonic() > deadline:
                raise self._failure(name, f"was not ready within {READY_WITHIN_S:.0f} s")
            time.sleep(POLL_S)

    def _failure(self, name: str, what: str) -> NodeFailed:
        log = tail(self._log(name).read_text(errors="replace"))
        return NodeFailed(f"{name} {what}; the end of its log:\n{log}")

    def _kubelet_answers(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self._healthz_port, timeout=2)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _is_ready(self) -> bool:
        node = self.plane.get(f"/api/v1/nodes/{self.name}") or {}
        conditions = node.get("status", {}).get("conditions", ())
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _memory() -> Path | None:
    """A directory in memory with enough space for the node's files and a path short enough for sockets, or None."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > MEMORY_FREE_BYTES else None


def _free_ports(count: int) -> list[int]:
    """Ports that are free now. The kubelet cannot take over a bound port, so another process may take one first."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
