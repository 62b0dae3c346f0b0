# SPDX-License-Identifier: Apache-2.0
"""What the admission policies of `dovetail lint --policy` cost: the time to create an object, without and with them.

    python -m benchmarks.lint_policies [--requests 200]

A real kube-apiserver with etcd on this machine takes dry runs of creates, one after the other on one connection. The
objects are a pod with a GPU, the same pod with a controller, and a ConfigMap, which no policy judges. Milliseconds,
medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import yaml

from dovetail.advice.lint.admission import policies
from dovetail.advice.lint.rules import BY_ID, RULES
from tests.advice.lint.dry_runs import DryRuns
from tools.controlplane.plane import Plane

ACTIVE_AFTER_S = 10


def objects() -> dict[str, dict[str, Any]]:
    pod = yaml.safe_load(BY_ID["G24"].good)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "a", "controller": True}
    return {
        "pod": pod,
        "pod of a controller": pod | {"metadata": pod["metadata"] | {"ownerReferences": [owner]}},
        "ConfigMap": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}},
    }


def measured(server: DryRuns, whole: dict[str, Any], requests: int) -> float:
    times = []
    for _ in range(requests):
        start = time.perf_counter()
        refused = server.create(whole)
        times.append(time.perf_counter() - start)
        assert not refused, refused
    return statistics.median(times) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    requests = parser.parse_args().requests
    with Plane(controllers=False) as plane:
        plane.kubectl("create", "priorityclass", "batch", "--value=100")
        server = DryRuns(plane)
        before = {name: measured(server, whole, requests) for name, whole in objects().items()}
        plane.kubectl("create", "-f-", input=policies(RULES, ()))
        time.sleep(ACTIVE_AFTER_S)
        for name, whole in objects().items():
            measured(server, whole, requests // 10)
            print(f"{name:<20} {before[name]:6.1f} ms {measured(server, whole, requests):6.1f} ms with policies")


if __name__ == "__main__":
    main()
