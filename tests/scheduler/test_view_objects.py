# SPDX-License-Identifier: Apache-2.0
"""The process that answers views gets the objects that it shows: all at its start, then each change."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from dovetail.core.policy import Policy
from dovetail.kube.api.changes import Change
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import discover
from dovetail.kube.api.resources import CONTROL_PLANES
from dovetail.kube.informers import Informers
from dovetail.kube.objects.leases import AgentControlPlane, LeaseMeta
from dovetail.kube.translate.read_notes import ReadNotes
from dovetail.kube.translate.reported import ReportedObjects
from dovetail.kube.translate.translator import Translator
from dovetail.playground import Playground
from dovetail.recording.stream import HEAD_BYTES, REPORTED
from dovetail.scheduler import view_objects
from dovetail.scheduler.view_feed import ViewFeed
from dovetail.scheduler.view_objects import ViewObjects
from tests.patience import PATIENCE_S
from tests.scheduler.scripted import until


def pod(name: str, phase: str, scheduler: str = "dovetail") -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": scheduler, "nodeName": "n0", "containers": [{"name": "m", "image": "i"}]},
        "status": {"phase": phase},
    }  # fmt: skip


def node(gpus: str) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": gpus}
    status = {"allocatable": {"nvidia.com/gpu": "8", "pods": "110"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels}, "status": status}


ODD = "Node n1: metadata.labels[nvidia.com/gpu.count]: 'eight': must be a whole number: not used"
PLANE = AgentControlPlane(LeaseMeta("agent", "default", "uid"))


class _Process:
    """What the process has got so far."""

    def __init__(self, channel: socket.socket) -> None:
        self.objects = ReportedObjects("dovetail")
        self._channel = channel
        self._rest = b""

    def ended(self) -> list[str]:
        self._receive()
        return sorted(one.pod.name for one in self.objects.ended())

    def notes(self, about: str) -> ReadNotes:
        self._receive()
        return self.objects.notes(about)

    def planes(self) -> list[str]:
        self._receive()
        return [one.metadata.name for one in self.objects.leases.planes]

    def _receive(self) -> None:
        try:
            while more := self._channel.recv(1 << 16):
                self._rest += more
        except BlockingIOError:
            pass
        while len(self._rest) >= HEAD_BYTES:
            end = HEAD_BYTES + int.from_bytes(self._rest[1:HEAD_BYTES], "big")
            if len(self._rest) < end:
                return
            assert self._rest[:1] == REPORTED
            self.objects.take(self._rest[HEAD_BYTES:end])
            self._rest = self._rest[end:]


@pytest.mark.slow
async def test_a_process_gets_all_objects_at_its_start_and_then_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_objects, "_PAGE", 2)
    playground = Playground()
    async with asyncio.timeout(2 * PATIENCE_S), Client(ClusterConfig(await playground.start())) as client:
        for one in (
             node("eight"), pod("runs", "Running"), pod("failed", "Failed"), pod("theirs", "Failed", "other"),
            *(pod(f"done-{number}", "Succeeded") for number in range(5)),
        ):  # fmt: skip
            playground.put(one)
        mirror = Informers(client, await discover(client), Translator("dovetail"))
        feed = ViewFeed(Policy())
        objects = ViewObjects(client, mirror, feed, "dovetail")
        following = asyncio.create_task(mirror.run())
        await mirror.synced()
        # A kind that the playground does not serve.
        mirror.control_planes.known["default", "agent"] = PLANE
        for _ in range(2):
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            process, cut = _Process(theirs), list[str]()
            feed.connect(ours, cut.append)
            await objects.report_all()
            await until(lambda process=process: len(process.ended()) == 6)  # type: ignore[misc]
            assert process.ended() == [*(f"done-{number}" for number in range(5)), "failed"]
            assert process.planes() == ["agent"] and not cut and not feed.due
            assert process.objects.notes("Node n1") == ReadNotes("", (ODD,))
        playground.put(node("8"))
        await until(lambda: process.notes("Node n1") == ReadNotes("labels"))
        playground.put(pod("runs", "Succeeded"))
        await until(lambda: "runs" in process.ended())
        playground.delete("pods", "default", "failed")
        assert mirror.seen is not None
        mirror.seen(CONTROL_PLANES, [Change("deleted", PLANE)])
        await until(lambda: "failed" not in process.ended() and not process.planes())
        feed.disconnect()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    await playground.stop()
