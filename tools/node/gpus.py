# SPDX-License-Identifier: Apache-2.0
"""The agent of a real node, on a stand-in machine with simulated GPUs (tools/standin)."""

import os
import stat
import subprocess
import sys
from pathlib import Path

from tools.controlplane.plane import Plane
from tools.node.node import Node
from tools.standin import Standin, library


def dovetail(*arguments: str) -> list[str]:
    """The command line of `dovetail` in this environment, regardless of PATH."""
    return [sys.executable, "-c", "from dovetail.cli import main; main()", *arguments]


def real_devices(folder: Path) -> None:
    """Turn a stand-in's device nodes into character devices, because container runtimes accept no plain files. They
    have the device number of /dev/null, which any user may open."""
    for path in (*folder.rglob("nvidia*"), *folder.rglob("infiniband/*")):
        if path.is_file() and not path.is_symlink():
            path.unlink()
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))


def real_library(standin: Standin) -> None:
    """Put the stand-in's library in the place of the driver's, whose file has no content: a container that gets the
    driver's files has it then."""
    for path in standin.driver_root.rglob(f"{library.NAME.removesuffix('.1')}.*"):
        if not path.is_symlink():
            path.write_bytes(standin.library.read_bytes())


def start_agent(node: Node, standin: Standin, state: Path, *options: str, log: Path) -> subprocess.Popen[bytes]:
    """Start `dovetail agent run` in the node on the stand-in machine, with its state in the folder `state`. It has no
    endpoints, because several nodes of this machine would use the same port."""
    roots = {"sysfs": standin.sysfs, "proc": standin.proc, "dev": standin.dev, "driver": standin.driver_root}
    argv = dovetail(
        "agent", "run", "--exporter=", f"--node-name={node.name}", f"--kubeconfig={node.plane.kubeconfig}",
        "--listen=", f"--state-folder={state}", *(f"--{name}-root={path}" for name, path in roots.items()), *options,
    )  # fmt: skip
    return node.spawn(argv, standin.environment, log)


def start_scheduler(plane: Plane, log: Path, *options: str, recording: Path | None = None) -> subprocess.Popen[bytes]:
    """Start `dovetail scheduler` for the plane as a process of this machine. It records into `recording`, if set."""
    recorded = f"--recording={recording}" if recording is not None else "--no-recording"
    argv = dovetail(
        "scheduler", f"--kubeconfig={plane.kubeconfig}", "--no-leader-elect", recorded, "--listen=", *options
    )
    with log.open("ab") as output:
        return subprocess.Popen(argv, stdout=output, stderr=output)
