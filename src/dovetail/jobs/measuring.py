# SPDX-License-Identifier: Apache-2.0
"""Jobs that measure the network between nodes: one for each group of nodes, a pod on each of them.

Rules
- A job takes all GPUs of its nodes, may be preempted, and has a short run time: it runs where others leave gaps, and
  its pods start together or not at all.
- It is over when its first pod has succeeded, or all of it has ended: the other pods of an mpirun wait for ever, and a
  pod that is evicted is made again. What its pods have written is its result, unless it failed: it may have been ended
  before its large messages. Then it is deleted, and so it is when the command is interrupted.
- A job that has no result in time is deleted, too, with the reason why it waited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct

from dovetail.core.model import GPU
from dovetail.jobs.cluster import JobCluster
from dovetail.jobs.finding import JobUnknown, NamedJob
from dovetail.jobs.gpu_request import GpuRequest
from dovetail.jobs.logs import LogRequest
from dovetail.jobs.manifests import NEW_KINDS, Document, JobRequest
from dovetail.jobs.pods import JobPod
from dovetail.jobs.waiting import failure, why_waiting
from dovetail.kube.api.errors import ApiError, KubeError
from dovetail.kube.translate.annotations import PREFIX

_MOST_BYTES = 4 << 20
"""Of what the pods of one job have written."""
_SUCCEEDED = "succeeded"
PROGRAM = """
import os, time, torch
import torch.distributed as dist
env = os.environ
local = int(env["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
ranks, size = dist.get_world_size(), 1 << 30
data = torch.zeros(size // 4, dtype=torch.float32, device="cuda")
def run(times):
    dist.barrier()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / times
run(5)
took = run(20)
if dist.get_rank() == 0:
    rate = size / took / 1e9
    print("# size count type redop root time algbw busbw #wrong")
    print(size, size // 4, "float sum -1 %.1f %.2f %.2f N/A" % (took * 1e6, rate, rate * 2 * (ranks - 1) / ranks), flush=True)
dist.destroy_process_group()
"""  # noqa: E501
"""An all-reduce of 1 GiB by PyTorch, which writes its result as nccl-tests do: no pod has to log in on another."""
TORCH_COMMAND = ("torchrun", "--no-python", "python3", "-c", PROGRAM)


class MeasureRequest(Struct, frozen=True):
    """How groups are measured. `runtime` is the longest run time of a job as a user writes it, and in seconds;
    `wait_s` is how long a job may take from its creation on, its waiting included."""

    namespace: str
    image: str
    command: tuple[str, ...] = TORCH_COMMAND
    queue: str = ""
    user: str = ""
    priority_class: str = ""
    runtime: str = "10m"
    runtime_s: int = 600
    wait_s: float = 3600
    at_once: int = 8
    resources: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    scheduler_name: str = "dovetail"


class MeasureJob(Struct, frozen=True):
    """A job of one group: its name, its nodes, and how many GPUs each of them has."""

    name: str
    nodes: tuple[str, ...]
    gpus: int


class MeasureAnswer(Struct, frozen=True):
    """What the pods of a job have written; `why` there is nothing, "" if there is."""

    text: str
    why: str = ""


def documents_of(job: MeasureJob, request: MeasureRequest) -> list[Document]:
    """The objects of the job."""
    annotations = {f"{PREFIX}preemptible": "true", **dict(request.annotations)}
    return NEW_KINDS["job"].make(
        JobRequest(
            name=job.name,
            namespace=request.namespace,
            image=request.image,
            command=request.command,
            gpus=GpuRequest(GPU, job.gpus),
            nodes=len(job.nodes),
            hosts=job.nodes,
            queue=request.queue,
            user=request.user,
            runtime=request.runtime,
            runtime_s=request.runtime_s,
            env=dict(request.env),
            resources=dict(request.resources),
            annotations=annotations,
            priority_class=request.priority_class,
            scheduler_name=request.scheduler_name,
        )
    )


async def measure(
    cluster: JobCluster,
    jobs: Sequence[MeasureJob],
    request: MeasureRequest,
    every_s: float,
    done: Callable[[MeasureJob, MeasureAnswer], None],
) -> None:
    """Run the jobs, a number of them at once. `done` gets each with its answer, in the order in which they end. Raises
    KubeError where the first job cannot be created; later failures are answers."""
    turns = asyncio.Semaphore(request.at_once)
    created = False

    def begun() -> None:
        nonlocal created
        created = True

    async def one(job: MeasureJob) -> None:
        async with turns:
            try:
                answer = await _answer(cluster, job, request, every_s, begun)
            except KubeError as error:
                if not created:
                    raise
                answer = MeasureAnswer("", str(error))
            done(job, answer)

    async with asyncio.TaskGroup() as tasks:
        for job in jobs:
            tasks.create_task(one(job))


async def _answer(
    cluster: JobCluster, job: MeasureJob, request: MeasureRequest, every_s: float, begun: Callable[[], None]
) -> MeasureAnswer:
    found: NamedJob | None = None
    try:
        await cluster.create(documents_of(job, request), request.namespace, owned=True)
        begun()
        found = await cluster.find(request.namespace, job.name, "job")
        end = time.monotonic() + request.wait_s
        while not _over(found):
            if time.monotonic() > end:
                why = why_waiting(found)
                return MeasureAnswer("", f"no result in time{': ' + why if why else ''}")
            await asyncio.sleep(every_s)
            found = await cluster.again(found)
        if not (found.ended == _SUCCEEDED or _first_succeeded(found)):
            return MeasureAnswer("", failure(found))
        return MeasureAnswer(await _written(cluster, found))
    finally:
        if found is None:
            with suppress(KubeError):
                found = await cluster.find(request.namespace, job.name, "job")
        if found is not None:
            with suppress(KubeError):
                await asyncio.shield(cluster.cancel(found))


def _over(job: NamedJob) -> bool:
    return bool(job.ended) or _first_succeeded(job)


def _first_succeeded(job: NamedJob) -> bool:
    return any(pod.state == _SUCCEEDED for pod in job.pods if pod.name.startswith(f"{job.name}-0-"))


async def _written(cluster: JobCluster, job: NamedJob) -> str:
    lines: list[bytes] = []
    left = _MOST_BYTES

    def write(_: JobPod, line: bytes) -> None:
        nonlocal left
        if left > 0:
            lines.append(line[:left])
            left -= len(line)

    with suppress(ApiError, JobUnknown):
        await cluster.read_logs(job.pods, LogRequest(), write)
    return b"\n".join(line.rstrip(b"\n") for line in lines).decode(errors="replace")
