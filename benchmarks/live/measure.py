# SPDX-License-Identifier: Apache-2.0
"""One run: a separate plane, the backlog, and one scheduler from its start until it writes nothing more.

Rules
- The measured time is from the start of the scheduler's process to the last bind, as a separate watch on bound pods
  receives it. The waiting time of a pod starts with its creation, or with the scheduler if the pod is older.
- Events follow the binds, so CPU time is read after no event has come for `QUIET_S`: deferred work counts.
- CPU time and memory come from the kernel's process accounting (/proc), so the benchmark needs Linux.
- A run never hangs: it has a problem if the scheduler exits or binds nothing for `STALLED_S`.
"""

import asyncio
import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.live.claims import ClaimScenario, SeenClaim
from benchmarks.live.contestants import Contestant, log_in
from benchmarks.live.load import Stream, fill
from benchmarks.live.scenario import NAMESPACE, Meta, Scenario, SeenPod
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.reflector import Change, Reflector, ReflectorTimes
from dovetail.kube.api.resources import EVENTS, PODS, RESOURCE_CLAIMS
from tools.controlplane.children import Children, tail
from tools.controlplane.plane import Plane

# Time for the API server's Go runtime to collect the garbage from the creation of the backlog.
SETTLE_S = 2.0
QUIET_S = 2.0
# kube-scheduler may need minutes for its first bind: each new pod makes it check all incomplete gangs
# (MoveAllToActiveOrBackoffQueue), and its first list is unordered, so most gangs are incomplete.
STALLED_S = 300.0
POLL_S = 0.1
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Outcome(Struct, frozen=True):
    """The result of one run. Times are from the start of the process; 0 means that it did not happen or is unknown.

    round: the runs of all schedulers in one round are consecutive and therefore comparable.
    alone: the same scenario without its obstacle; "" if there is none.
    p50_ms, p99_ms: the time that pods waited for their bind.
    others_cpu_s: CPU time of other processes on the machine; a run with much of it is unreliable.
    """

    round: int
    scenario: str
    scheduler: str
    alone: str
    pods: int
    first_bind_s: float
    last_bind_s: float
    p50_ms: float
    p99_ms: float
    last_event_s: float
    events: int
    cpu_s: float
    apiserver_cpu_s: float
    etcd_cpu_s: float
    observer_cpu_s: float
    others_cpu_s: float
    max_rss_mib: float
    problems: tuple[str, ...]


class _Regarding(Struct, frozen=True):
    uid: str = ""


class _Event(Struct, frozen=True):
    metadata: Meta
    reason: str = ""
    regarding: _Regarding = _Regarding()


class _CountMeta(Struct, rename="camel"):
    remaining_item_count: int = 0


class _Count(Struct):
    metadata: _CountMeta
    items: list[_Event] | None = None


class _Binds:
    """The bound pods in order, with their times. Each is passed to `stream`."""

    def __init__(self, stream: Stream) -> None:
        self.seen_s: dict[str, float] = {}
        self.last_s = 0.0
        self._stream = stream

    def sink(self, changes: list[Change[SeenPod]]) -> None:
        for change in changes:
            if change.kind == "added":
                self.last_s = self.seen_s[change.object.metadata.uid] = time.monotonic()
                self._stream.bound(change.object)

    @property
    def first_s(self) -> float:
        return next(iter(self.seen_s.values()), 0.0)

    def waited_s(self, start_s: float) -> list[float]:
        """The sorted waiting times of all pods."""
        created_s = self._stream.created_s
        return sorted(max(0.0, seen_s - created_s.get(uid, start_s)) for uid, seen_s in self.seen_s.items())


class Heat(Struct, frozen=True):
    """A planned run: a scheduler, a scenario and a round."""

    round: int
    scenario_name: str
    scenario: Scenario | ClaimScenario
    scheduler: str
    contestant: Contestant


async def measure(heat: Heat) -> Outcome:
    """Execute one run. Raises PlaneUnavailable, ComponentFailed, KubectlFailed, KubeError."""
    with Plane(controllers=heat.scenario.controllers or False, fair_queueing=False) as plane:
        argv = heat.contestant.argv(plane, log_in(plane))
        async with Client(load_config(str(plane.kubeconfig))) as client:
            await fill(client, heat.scenario, heat.contestant.scheduler_name)
            await asyncio.sleep(SETTLE_S)
            return await _watched_run(plane, client, heat, argv)


async def _watched_run(plane: Plane, client: Client, heat: Heat, argv: list[str]) -> Outcome:
    scenario, scheduler = heat.scenario, heat.scheduler
    stream = Stream(client, scenario, heat.contestant.scheduler_name)
    binds = _Binds(stream)
    bound = {"fieldSelector": "spec.nodeName!="}
    bound_pods = Reflector(client, PODS, SeenPod, binds.sink, params=bound, times=ReflectorTimes(heartbeat_s=STALLED_S))
    scratch = Path(tempfile.mkdtemp(prefix="dovetail-live-"))
    log = scratch / "scheduler.log"
    children = Children()
    children.open(scratch)
    async with asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(bound_pods.run()), tasks.create_task(stream.finish())]
        try:
            await bound_pods.synced.wait()
            servers = [plane.pids["kube-apiserver"], plane.pids["etcd"], os.getpid()]
            machine_before, before = machine_cpu_s(), [cpu_s(pid) for pid in servers]
            start_s = time.monotonic()
            children.start(scheduler, argv, log)
            problems = await _until_bound(children, scheduler, binds, scenario.backlog, log)
            if not problems:
                beside.append(tasks.create_task(stream.feed()))
                problems = await _until_bound(children, scheduler, binds, scenario.pod_count, log)
            last_event_s = await _until_quiet(client)
            pid = children.pids[scheduler]
            own_cpu_s, rss_mib = (0.0, 0.0) if problems else (cpu_s(pid), max_rss_mib(pid))
            server_cpu_s = [cpu_s(pid) - was for pid, was in zip(servers, before, strict=True)]
            machine_s = machine_cpu_s() - machine_before
        finally:
            children.close()
            for task in beside:
                task.cancel()
    pods = (await list_all(client, PODS, SeenPod)).objects.values()
    claims = (await list_all(client, RESOURCE_CLAIMS, SeenClaim)).objects.values()
    waited_s = binds.waited_s(start_s)
    return Outcome(
        round=heat.round,
        scenario=heat.scenario_name,
        scheduler=scheduler,
        alone=scenario.alone,
        pods=scenario.pod_count,
        first_bind_s=max(0.0, binds.first_s - start_s),
        last_bind_s=max(0.0, binds.last_s - start_s),
        p50_ms=1000 * percentile(waited_s, 50),
        p99_ms=1000 * percentile(waited_s, 99),
        last_event_s=max(0.0, last_event_s - start_s),
        events=await _scheduled_events(client),
        cpu_s=own_cpu_s,
        apiserver_cpu_s=server_cpu_s[0],
        etcd_cpu_s=server_cpu_s[1],
        observer_cpu_s=server_cpu_s[2],
        others_cpu_s=max(0.0, machine_s - own_cpu_s - sum(server_cpu_s)),
        max_rss_mib=rss_mib,
        problems=(*problems, *scenario.problems(pods, claims)),
    )


async def _until_bound(children: Children, scheduler: str, binds: _Binds, wanted: int, log: Path) -> list[str]:
    """Wait for `wanted` binds. Returns the problems if they do not come."""
    started_s = time.monotonic()
    while len(binds.seen_s) < wanted:
        await asyncio.sleep(POLL_S)
        status = children.exit_status(scheduler)
        if status is not None:
            what = f"the process ended with status {status}"
        elif time.monotonic() - max(started_s, binds.last_s) > STALLED_S:
            what = f"no bind for {STALLED_S:.0f} s"
        else:
            continue
        return [f"{what}; the end of its log:\n{_end_of(log)}"]
    return []


def _end_of(log: Path) -> str:
    return tail(log.read_text(errors="replace"))


async def _until_quiet(client: Client) -> float:
    """Wait until no event has been added for QUIET_S. Returns the time of the last one with precision POLL_S, or 0."""
    # Only the number of events matters, and counting is much cheaper for the API server than a watch.
    count, changed_s, last_s = 0, time.monotonic(), 0.0
    while time.monotonic() - changed_s < QUIET_S:
        page = await client.request("GET", EVENTS.path(NAMESPACE), params={"limit": 1}, decode=_Count)
        now = page.metadata.remaining_item_count + len(page.items or ())
        if now != count:
            count, changed_s = now, time.monotonic()
            last_s = changed_s
        await asyncio.sleep(POLL_S)
    return last_s


async def _scheduled_events(client: Client) -> int:
    """The number of pods with a Scheduled event."""
    events = (await list_all(client, EVENTS, _Event)).objects.values()
    return len({event.regarding.uid for event in events if event.reason == "Scheduled"})


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that `percent` % of the values do not exceed; 0 without values."""
    return ordered[-(-len(ordered) * percent // 100) - 1] if ordered else 0.0


def cpu_s(pid: int) -> float:
    """User and system time of a process and of the children it has waited for (proc_pid_stat(5), fields 14 to 17)."""
    # The second field is the name in parentheses and may contain spaces.
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(int(ticks) for ticks in after_name[11:15]) / TICKS_PER_S


def machine_cpu_s() -> float:
    """Busy time of all CPUs (proc_stat(5)): everything but idle and iowait."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def max_rss_mib(pid: int) -> float:
    """The peak resident memory of a process (VmHWM)."""
    return int(re.findall(r"^VmHWM:\s*(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0]) / 1024
