# SPDX-License-Identifier: Apache-2.0
"""Nodes with agents as processes of their own, on stand-in machines, for a real Prometheus."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from dovetail.kube.api.config import load_kubeconfig
from tests.agent.whole_agent import Seat
from tools.controlplane.plane import Plane
from tools.standin import Standin

SHORT = {
    "interval": "1s", "settle": "1s", "xid_window": "10s", "ecc_window": "20s", "unhealthy_for": "1s",
    "count_for": "1s", "orphan_for": "2s", "fabric_for": "1s",
}  # fmt: skip
"""The waits of the rules, shorter; the conditions are the shipped ones."""


@contextmanager
def _agent(seat: Seat, kubeconfig: Path, port: int, log: Path) -> Iterator[None]:
    """The agent of a node as a process of its own: each has another library of NVIDIA."""
    options = seat.options
    paths = ("kubelet_config", "kubelet_folder", "state_folder", "cdi_folder", "mps_folder", "sysfs_root", "proc_root",
             "dev_root", "driver_root")  # fmt: skip
    argv = [
        sys.executable, "-c", "from dovetail.cli import main; main()", "agent", "run",
        f"--node-name={options.node_name}", f"--kubeconfig={kubeconfig}", "--listen=",
        f"--exporter=127.0.0.1:{port}", "--exporter-job-labels",
        *(f"--{path.replace('_', '-')}={getattr(options, path)}" for path in paths),
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(argv, env=os.environ | seat.machine.environment, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def fleet(
    crd: Plane, standin: Callable[[Any], Standin], folder: Path, ports: list[int]
) -> AsyncIterator[list[Seat]]:
    """A node for each port, with all GPUs of its agent at the kubelet."""
    async with AsyncExitStack() as seats:
        found = []
        for i, port in enumerate(ports):
            machine = standin({"like": "dgx-h100", "seed": i + 1})
            seat = await seats.enter_async_context(Seat(load_kubeconfig([crd.kubeconfig]), machine, f"gpu-{i}"))
            seats.enter_context(_agent(seat, crd.kubeconfig, port, folder / f"agent-{i}.log"))
            found.append(seat)
        for seat in found:
            await seat.offers(8)
        yield found
