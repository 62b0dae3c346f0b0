# SPDX-License-Identifier: Apache-2.0
"""The logs of a job: those of its pods, line by line, as they come.

Rules
- The lines of several pods come as they are written, each whole; every line is that of one pod.
- To follow a job waits for pods that have not started, takes up pods that are made later, and ends with the job. A
  connection that breaks is made again, from the time of the last line on: a line may come twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from dovetail.jobs.changes import NotDone
from dovetail.jobs.finding import Finder, NamedJob
from dovetail.jobs.pods import JobPod
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import ApiError, Unreachable
from dovetail.kube.api.resources import PODS

Write = Callable[[JobPod, bytes], None]
_BY_KUBELET = ("runs", "ends", "succeeded", "failed")
"""The states of pods that have logs."""
_HEAD_S = 86_400.0
"""A kubelet sends the head of its reply with the first line."""
_AGAIN_S = 1.0
_REFUSED_TIMES = 30
_MOST_BYTES = 1 << 20
"""A line is passed on once it has so many bytes."""


class LogRequest(Struct, frozen=True):
    """Which logs: of the pod of this name or rank (both None: of all), of its container ("": the only one, or the
    first), the last `tail` lines (None: all)."""

    pod: str | None = None
    rank: int | None = None
    container: str = ""
    tail: int | None = None

    def chosen(self, job: NamedJob) -> list[JobPod]:
        """The pods of the job whose logs these are. Raises NotDone if it has none such."""
        if self.pod is None and self.rank is None:
            return list(job.pods)
        found = [pod for pod in job.pods if self.pod in (None, pod.name) and self.rank in (None, pod.rank)]
        if not found:
            what = f"pod {self.pod}" if self.pod is not None else f"pod of rank {self.rank}"
            there = ", ".join(pod.name if pod.rank is None else f"{pod.name} ({pod.rank})" for pod in job.pods[:8])
            raise NotDone(f"{job.title} has no {what}: its pods are {there}" if there else f"{job.title} has no pods")
        return found

    def container_of(self, pod: JobPod) -> str:
        """The container whose logs these are. Raises NotDone if the pod has none such."""
        names = [one.name for one in pod.spec.containers]
        if self.container and self.container not in names:
            raise NotDone(f"pod {pod.name} has no container {self.container}: it has {', '.join(names)}")
        return self.container or (names[0] if names else "")


async def read_logs(client: Client, pods: Sequence[JobPod], request: LogRequest, write: Write) -> list[JobPod]:
    """Write what the pods have written until now, one pod after the other. Returns those that have not started. Raises
    NotDone and ApiError."""
    late = []
    for pod in pods:
        if pod.state in _BY_KUBELET:
            await _stream(client, pod, request, {}, write)
        else:
            late.append(pod)
    return late


async def follow_logs(
    client: Client, finder: Finder, job: NamedJob, request: LogRequest, write: Write, every_s: float,
    shown: Callable[[NamedJob], None],
) -> NamedJob:  # fmt: skip
    """Write what its pods write, until the job has ended. `shown` gets the job each time it is read. Returns it as it
    is then. Raises NotDone, JobUnknown if it is deleted, and ApiError."""
    streams: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            shown(job)
            pods = request.chosen(job) if job.pods else []
            for pod in pods:
                if pod.state in _BY_KUBELET and pod.metadata.uid not in streams:
                    streams[pod.metadata.uid] = asyncio.create_task(_follow(client, pod, request, write))
            for task in [task for task in streams.values() if task.done()]:
                task.result()
            over = job.ended or (request.rank is None and request.pod is not None and _all_over(pods))
            if over and all(task.done() for task in streams.values()):
                return job
            await asyncio.sleep(every_s)
            job = await finder.again(job)
    finally:
        for task in streams.values():
            task.cancel()
        await asyncio.gather(*streams.values(), return_exceptions=True)


def _all_over(pods: Sequence[JobPod]) -> bool:
    return all(pod.state in ("succeeded", "failed") for pod in pods)


async def _follow(client: Client, pod: JobPod, request: LogRequest, write: Write) -> None:
    """Write what the pod writes until it has ended. Raises ApiError."""
    more: dict[str, str | int] = {"follow": "true"}
    last = datetime.now(UTC)

    def written(source: JobPod, line: bytes) -> None:
        nonlocal last
        last = datetime.now(UTC)
        write(source, line)

    refused = 0
    while True:
        try:
            await _stream(client, pod, request, more, written)
            return
        except Unreachable:
            more["sinceTime"] = last.strftime("%Y-%m-%dT%H:%M:%SZ")
        except ApiError as error:
            # Its container is not there yet, or not any more.
            refused += 1
            if error.status != 400 or refused == _REFUSED_TIMES:
                raise
        await asyncio.sleep(_AGAIN_S)


async def _stream(
    client: Client, pod: JobPod, request: LogRequest, more: dict[str, str | int], write: Write
) -> None:  # fmt: skip
    """Write the lines of one reply."""
    params: dict[str, str | int] = {"container": request.container_of(pod), **more}
    if request.tail is not None and "sinceTime" not in more:
        params["tailLines"] = request.tail
    path = PODS.path(pod.metadata.namespace, pod.name, "log")
    begun = b""
    async with client.stream(path, params, timeout_s=_HEAD_S if more else 30.0) as connection:
        while data := await connection.read():
            *lines, begun = (begun + data).split(b"\n")
            for line in lines:
                write(pod, line)
            if len(begun) > _MOST_BYTES:
                write(pod, begun)
                begun = b""
    if begun:
        write(pod, begun)
