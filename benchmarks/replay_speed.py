# SPDX-License-Identifier: Apache-2.0
"""Cost of recording, and speed of the replay.

    python benchmarks/replay_speed.py [--nodes 1250] [--pods 10000] [--mib 512] [--keep DIR] [-o json]

Load: nodes x 8 GPUs. A quarter of the pods are in gangs of 20 that prefer a rack, the others are lone. Events arrive in
batches of 100, with 64 attempts per step, as in the live scheduler. Each bind is confirmed one batch later; one in 200
fails. A tenth of the lone pods end. The same load runs without and with a recorder; the difference in CPU time of all
threads is the cost of recording.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dovetail.core import cycle
from dovetail.core.decisions import Bind, Decision
from dovetail.core.events import BindFailed, Event, GangChanged, NodeChanged, PodChanged, PodRemoved
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Gang, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.recording.calls import CoreCalls
from dovetail.recording.folder import MIB
from dovetail.recording.reader import find
from dovetail.recording.recorder import Recorder
from dovetail.recording.replay import replay

GIB = 2**30
RACK = "dovetail.dev/rack"
POLICY = Policy(attempts_per_step=64)
_BATCH = 100
_GANG = 20
Step = Callable[[State, Iterable[Event], int], list[Decision]]


def nodes(count: int) -> list[Event]:
    amounts = ((CPU, 192_000), (MEMORY, 2048 * GIB), (GPU, 8), (PODS, 110))
    labels = [(("kubernetes.io/hostname", f"node-{i}"), (RACK, f"rack-{i // 16}")) for i in range(count)]
    return [NodeChanged(Node(f"node-{i}", amounts, labels[i])) for i in range(count)]


def pods(count: int, dice: random.Random) -> list[Event]:
    """Pods with one GPU each, and uids and names like those of a Job."""
    shapes = [Request(((CPU, 1000 * n), (MEMORY, 8 * n * GIB), (GPU, 1))) for n in range(1, 13)]
    events: list[Event] = []
    for number in range(count):
        gang = ""
        if number < count // 4:
            gang = f"batch/Job/default/train-{number // _GANG}"
            if number % _GANG == 0:
                least = min(_GANG, count // 4 - number)
                events.append(GangChanged(Gang(gang, "default", gang, min_count=least, preferred=(RACK,))))
        uid = f"{dice.getrandbits(128):032x}"
        name = f"train-{number // _GANG}-{number % _GANG}-{uid[:5]}"
        labels = (("batch.kubernetes.io/job-name", f"train-{number // _GANG}"),)
        created_ms = 1_700_000_000_000 + 1000 * (number // _BATCH)
        events.append(
            PodChanged(Pod(uid, "default", name, dice.choice(shapes), labels, created_ms=created_ms, gang=gang))
        )
    return events


def live(step: Step, renewed: Callable[[State], State], node_count: int, pod_count: int) -> tuple[State, int]:
    """Run the load. Returns the final state and the number of steps."""
    dice = random.Random(1)
    waiting = pods(pod_count, dice)
    state, now_ms, inbox = State(POLICY), 1_700_000_000_000, nodes(node_count)
    while waiting or inbox or state.busy or state.cluster.avoided:
        state = renewed(state)
        now_ms += 5
        inbox, waiting = inbox + waiting[:_BATCH], waiting[_BATCH:]
        decisions, inbox = step(state, inbox, now_ms), []
        for bind in decisions:
            if not isinstance(bind, Bind):
                continue
            if dice.random() < 0.005:
                inbox.append(BindFailed(bind.uid, bind.node, "the node was deleted", now_ms + 50))
                continue
            pod = state.workloads.pods[bind.uid]
            inbox.append(PodChanged(replace(pod, node=bind.node, bound_ms=now_ms)))
            if not pod.gang and dice.random() < 0.1:
                inbox.append(PodRemoved(bind.uid))
    return state, state.steps


def measure(node_count: int, pod_count: int, mib: int, folder: Path) -> dict[str, object]:
    began_s = time.process_time()
    _, steps = live(cycle.step, lambda state: state, node_count, pod_count)
    plain_s = time.process_time() - began_s
    written, problems = 0, list[Any]()

    def wrote(count: int) -> None:
        nonlocal written
        written += count

    began_s = time.process_time()
    recorder = Recorder(folder, mib * MIB, "bench", POLICY, wrote=wrote, stopped=problems.append)
    calls = CoreCalls([recorder])
    state, recorded_steps = live(calls.step, calls.renewed, node_count, pod_count)
    recorder.close()
    recorded_s = time.process_time() - began_s
    assert not problems, problems
    runs, wrong = find([folder])
    assert not wrong, wrong
    done = replay(runs[0])
    return {
        "pods": pod_count,
        "placed": len(state.cluster.placements),
        "steps": recorded_steps,
        "events": done.events,
        "decisions": done.decisions,
        "core_s": round(plain_s, 2),
        "recording_us_per_step": round(1e6 * (recorded_s - plain_s) / steps),
        "recording_us_per_event": round(1e6 * (recorded_s - plain_s) / done.events, 1),
        "bytes": written,
        "bytes_per_pod": written // pod_count,
        "segments": done.segments,
        "replay_s": round(done.seconds, 2),
        "verdict": done.verdict,
        "digest": done.digest,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--mib", type=int, default=512, help="bound of the recording")
    parser.add_argument("--keep", type=Path, help="leave the recording in this directory")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options.nodes, options.pods, options.mib, options.keep or Path(folder))
    if options.output == "json":
        print(json.dumps(result, indent=1))
        return
    for name, value in result.items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
