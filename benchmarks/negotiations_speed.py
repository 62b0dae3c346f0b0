# SPDX-License-Identifier: Apache-2.0
"""Speed of the broker in the core: negotiations per second, from the request over the offer and its acceptance to the
return of the lease.

    python benchmarks/negotiations_speed.py [--nodes 1000] [--planes 500] [--requests 20000] [--runs 3]

Load: nodes x 8 GPUs in racks of 16; planes below one queue that ask in turn for 1, 2, 4 or 8 GPUs of one node, accept
the first offer, and return the lease a step later. Half of the GPUs are leased all the time. Each run is a process of
its own and counts its CPU time; a negotiation has four steps of the core. `--json` prints one object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import deque
from typing import TypeVar

from dovetail import __runs__ as runs_on
from dovetail.core import events as ev
from dovetail.core.bargaining.types import Answer, LeaseAction, LeaseAlternative, LeaseRequest, Plane
from dovetail.core.cycle import step
from dovetail.core.decisions import Decision, GrantLease, MakeOffers
from dovetail.core.model import GPU, PODS, Node
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue
from dovetail.core.state import State

T = TypeVar("T")
SIZES = (1, 2, 4, 8)


def world(nodes: int, planes: int) -> State:
    state = State(Policy())
    events: list[ev.Event] = [ev.QueueChanged(Queue("agents", planes=True))]
    events += [
        ev.NodeChanged(Node(f"n{i}", ((GPU, 8), (PODS, 110)), (("dovetail.dev/rack", f"r{i // 16}"),)))
        for i in range(nodes)
    ]
    events += [ev.PlaneChanged(Plane(f"p{i}/p{i}", "agents", heartbeat_ms=0, idle_ms=0)) for i in range(planes)]
    step(state, events, 1)
    return state


def one_run(nodes: int, planes: int, requests: int) -> float:
    """Negotiations per second."""
    state, now_ms = world(nodes, planes), 1
    live: deque[GrantLease] = deque()
    begun = time.process_time()
    held = 0
    for number in range(requests):
        now_ms += 1
        size = SIZES[number % len(SIZES)]
        alternatives = (LeaseAlternative(count=size, per_node=size, duration_ms=3_600_000),)
        plane = f"p{number % planes}"
        request = LeaseRequest(f"r{number}", f"{plane}/{plane}", f"r{number}", alternatives, created_ms=now_ms)
        (offer,) = found(step(state, [ev.LeaseRequestChanged(request)], now_ms), MakeOffers)
        answer = Answer(offer.offers[0].id, "accept")
        accepted = LeaseRequest(request.id, request.plane, request.name, alternatives, created_ms=now_ms, answer=answer)
        (grant,) = found(step(state, [ev.LeaseRequestChanged(accepted)], now_ms), GrantLease)
        live.append(grant)
        held += size
        while held > 4 * nodes:
            lease = live.popleft().lease
            action = ev.LeaseActed(LeaseAction(lease.id, 1, lease.fence, "return"))
            step(state, [action], now_ms)
            step(state, [ev.LeaseRequestRemoved(lease.id)], now_ms)
            held -= lease.alternative.count
    return requests / (time.process_time() - begun)


def found(decisions: list[Decision], kind: type[T]) -> list[T]:
    return [one for one in decisions if isinstance(one, kind)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--planes", type=int, default=500)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        print(one_run(args.nodes, args.planes, args.requests))
        return
    sizes = [f"--nodes={args.nodes}", f"--planes={args.planes}", f"--requests={args.requests}"]
    command = [sys.executable, __file__, "--once", *sizes]
    rates = [
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(args.runs)
    ]
    rate = statistics.median(rates)
    if args.json:
        print(json.dumps({"negotiations_per_s": round(rate), "runs": [round(one) for one in rates]}))
        return
    print(f"{rate:,.0f} negotiations/s (median of {args.runs}: {', '.join(f'{one:,.0f}' for one in rates)})")
    print(f"{args.nodes} nodes, {args.planes} planes, {args.requests} requests; {runs_on()}")


if __name__ == "__main__":
    main()
