# SPDX-License-Identifier: Apache-2.0
"""What recording rules compute: use with all and with few profiling values, owners, jobs, teams, free GPUs, XIDs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.monitoring.scenarios import GPU, Labels, Series, check, sample, selector
from tools.prometheus.promtool import Promtool

pytestmark = pytest.mark.plane

A = GPU("a")
B = GPU("b", pod="train-1")
FREE = GPU("f", pod="", job="")
UTIL = "DCGM_FI_DEV_GPU_UTIL"


class Rules:
    """promtool with all rules: `holds(series, tests)`."""

    def __init__(self, promtool: Promtool, folder: Path) -> None:
        self._promtool, self._folder = promtool, folder

    def holds(self, series: Sequence[Series], *tests: dict[str, Any], step: str = "1m") -> None:
        check(self._promtool, self._folder, series, tests, step)


@pytest.fixture
def rules(promtool: Promtool, tmp_path: Path) -> Rules:
    return Rules(promtool, tmp_path)


def value(rule: str, at: str, *samples: tuple[Labels, float]) -> dict[str, Any]:
    return sample(rule, at, *samples, name=rule)


def profiled(gpu: GPU, sm: float, tensor: float, dram: float, graphics: float) -> list[Series]:
    values = {"SM_ACTIVE": sm, "PIPE_TENSOR_ACTIVE": tensor, "DRAM_ACTIVE": dram, "GR_ENGINE_ACTIVE": graphics}
    return [gpu.series(f"DCGM_FI_PROF_{name}", f"{value}x5") for name, value in values.items()]


def test_real_use_weighs_the_profiling_values_and_takes_utilization_for_absent_ones(rules: Rules) -> None:
    no_sm = [series for series in profiled(B, 0.9, 0.4, 0.3, 1.0) if "SM_ACTIVE" not in series[0]]
    nothing = GPU("c", pod="train-2")
    slice_, whole_slice = (GPU("d", pod=f"slice-{number}", job="slice", mig=str(number)) for number in (3, 4))
    rules.holds(
        [
            *(gpu.held() for gpu in (A, B, nothing, slice_, whole_slice)),
            *profiled(A, 0.8, 0.4, 0.5, 1.0), A.series(UTIL, "100x5"),
            *no_sm, B.series(UTIL, "60x5"),
            nothing.series(UTIL, "60x5"),
            slice_.series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "0.5x5"),
            *profiled(whole_slice, 0.8, 0.0, 0.5, 0.5),
        ],
        value(
            "gpu:real_util", "5m",
            (A.labels, 0.35 * 0.8 + 0.35 * 0.4 + 0.2 * 0.5 + 0.1),
            (B.labels, 0.35 * 0.6 + 0.35 * 0.4 + 0.2 * 0.3 + 0.1),
            (nothing.labels, 0.6),
            (slice_.labels, 0.5),
            (whole_slice.labels, 0.35 * 0.8 + 0.2 * 0.5 + 0.1 * 0.5),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("spelling", [("hostname",), ("Hostname",), ("hostname", "Hostname")])
def test_both_spellings_of_the_node_give_one_label(rules: Rules, spelling: tuple[str, ...]) -> None:
    gpu = replace(A, spelling=spelling)
    rules.holds(
        [gpu.held("0.5x5"), gpu.series(UTIL, "60x5"), gpu.series("dovetail_gpu_found", "8x5")],
        value("gpu:used", "5m", (A.labels, 0.3)),
        value("node:gpus:count", "5m", ({"hostname": "n1"}, 1)),
    )


def test_without_job_labels_the_pod_is_the_job_and_the_namespace_the_team(rules: Rules) -> None:
    one, two = GPU("a", pod="train-0", job=""), GPU("b", pod="train-1", job="")
    assert one.labels["job"] == "train-0"
    rules.holds(
        [one.held(), two.held(), FREE.held("0x600")],
        value("gpu:allocated", "5m", (one.labels, 1), (two.labels, 1), (FREE.labels, 0)),
        value("job:gpu_allocated:sum", "5m", (one.job_labels, 1), (two.job_labels, 1)),
        value("team:gpu_allocated:sum", "5m", ({"team": "red"}, 2)),
    )


def test_with_the_series_of_dcgm_exporter_alone_a_gpu_with_a_pod_is_held(rules: Rules) -> None:
    rules.holds(
        [A.series("DCGM_FI_DEV_FB_USED", "7x5"), FREE.series("DCGM_FI_DEV_FB_USED", "0x5")],
        value("gpu:allocated", "5m", (A.labels, 1), (FREE.labels, 0)),
    )


def test_our_share_wins_over_the_guess(rules: Rules) -> None:
    rules.holds(
        [A.held("0.25x5"), A.series("DCGM_FI_DEV_FB_USED", "7x5")], value("gpu:allocated", "5m", (A.labels, 0.25))
    )


def test_the_owners_of_a_shared_gpu_count_by_their_parts(rules: Rules) -> None:
    one, two = GPU("s", pod="x-0", job="x"), GPU("s", pod="y-0", job="y")
    rules.holds(
        [one.held("0.25x5"), two.held("0.5x5"), one.series(UTIL, "40x5"), two.series(UTIL, "80x5")],
        value("team:gpu_allocated:sum", "5m", ({"team": "research"}, 0.75)),
        value("team:gpu_used:sum", "5m", ({"team": "research"}, 0.1 + 0.4)),
        value("node:gpus:count", "5m", ({"hostname": "n1"}, 1)),
    )


def test_a_new_pod_on_a_gpu_begins_anew_and_a_gap_does_not(rules: Rules) -> None:
    after = GPU("a", pod="next-0", job="next")
    rules.holds(
        [A.held("1x10 _x7 1x2 stale"), after.held("_x21 1x20")],
        value("gpu:since", "10m", (A.labels, 0)),
        value("gpu:since", "19m", (A.labels, 0)),
        value("gpu:since", "25m", (after.labels, 21 * 60)),
    )


def test_startup_ends_after_ten_minutes_and_lasts_while_images_are_pulled(rules: Rules) -> None:
    waiting = selector(
        "kube_pod_container_status_waiting_reason",
        {"namespace": "red", "pod": "train-1", "container": "main", "reason": "ImagePullBackOff"},
    )
    rules.holds(
        [A.held(), B.held(), A.series(UTIL, "0x60"), B.series(UTIL, "0x60"), (waiting, "1x20 stale")],
        value("gpu:startup", "9m", (A.labels, 1), (B.labels, 1)),
        value("gpu:startup", "10m", (B.labels, 1)),
        value("gpu:idle_allocated", "9m"),
        value("gpu:idle_allocated", "10m", (A.labels, 1)),
        value("gpu:idle_allocated", "21m", (A.labels, 1), (B.labels, 1)),
        value("team:gpu_idle:sum", "10m", ({"team": "research"}, 1)),
        value("team:gpu_startup:sum", "10m", ({"team": "research"}, 1)),
    )


def test_means_of_a_job_are_weighted_by_gpu_and_end_with_it(rules: Rules) -> None:
    rules.holds(
        [
            A.held("1x90 stale"),
            B.held("1x90 stale"),
            A.series(UTIL, "90x90 stale"),
            B.series(UTIL, "30x60 60x30 stale"),
        ],
        value("job:gpu_real_util:avg1h", "60m", (A.job_labels, (90 * 60 + 30 * 60) / 120 / 100)),
        value("job:gpu_real_util:avg1h", "90m", (A.job_labels, (90 * 60 + 30 * 30 + 60 * 30) / 120 / 100)),
        value("job:gpu_real_util:avg1h", "91m"),
    )


def test_gpu_hours_of_a_day_by_team(rules: Rules) -> None:
    """A team holds two GPUs for a day and uses one of them by half. In steps of an hour each step is a start."""
    team = {"team": "research"}
    rules.holds(
        [A.held("1x40"), B.held("1x40"), A.series(UTIL, "50x40"), B.series(UTIL, "0x40")],
        value("team:gpu_hours_allocated:1h", "30h", (team, 2)),
        value("team:gpu_hours_allocated", "30h", (team, 48)),
        value("team:gpu_hours_used", "30h", (team, 12)),
        value("team:gpu_hours_startup", "30h", (team, 48)),
        value("job:gpu_real_util:avg24h", "30h", (A.job_labels, 0.25)),
        value("job:gpu_real_util:avg30d", "30h", (A.job_labels, 0.25)),
        value("team:gpu_real_util:avg30d", "30h", (team, 0.25)),
        step="1h",
    )


def test_free_gpus_are_whole_healthy_and_nobody_s(rules: Rules) -> None:
    unhealthy, parent = GPU("i", pod="", job=""), GPU("m", pod="", job="")
    free_slice = replace(parent, mig="1")
    second, unknown = GPU("g", pod="", job="", host="n2"), GPU("u", pod="", job="", host="n3")
    old = selector("dovetail_exporter_owners_age_seconds", {"hostname": "n3"})
    waiting = selector("dovetail_waiting_jobs", {"namespace": "red", "reason": "NoNodeFits", "when": "NotYet"})
    by_quota = selector("dovetail_waiting_jobs", {"namespace": "red", "reason": "QueueLimit", "when": "NotYet"})
    rules.holds(
        [
            A.held(), FREE.held("0x20"), second.held("0x20"), unknown.held("0x20"), (old, "61x20"),
            unhealthy.held("0x20"), unhealthy.series("dovetail_gpu_healthy", "0x20"),
            parent.held("0x20"), free_slice.held("0x20"), (waiting, "0x10 1x10"), (by_quota, "3x20"),
        ],
        value("node:largest_free_block", "5m", ({"hostname": "n1"}, 1), ({"hostname": "n2"}, 1)),
        value("cluster:gpus:count", "5m", ({}, 6)),
        value("cluster:gpus_free:count", "5m", ({}, 2)),
        value("cluster:stranded_gpus", "5m", ({}, 0)),
        value("cluster:stranded_gpus", "15m", ({}, 2)),
    )  # fmt: skip


def test_without_free_gpus_none_is_stranded(rules: Rules) -> None:
    waiting = selector("dovetail_waiting_jobs", {"reason": "NoNodeFits", "when": "NotYet"})
    rules.holds(
        [A.held(), (waiting, "1x9")],
        value("cluster:gpus_free:count", "5m", ({}, 0)),
        value("cluster:stranded_gpus", "5m", ({}, 0)),
    )


def test_the_straggler_of_a_job_is_measured_against_the_median(rules: Rules) -> None:
    members = [GPU(f"g{number}", pod=f"train-{number}") for number in range(4)]
    series = [gpu.held() for gpu in members]
    series += [gpu.series(UTIL, f"{util}x20") for gpu, util in zip(members, (80, 80, 80, 30), strict=True)]
    rules.holds(
        series,
        value("job:straggler_gap", "15m", (members[0].job_labels, 0.5)),
        value(
            "gpu:straggler_gap", "15m", *((gpu.labels, gap) for gpu, gap in zip(members, (0, 0, 0, 0.5), strict=True))
        ),
    )


def test_scheduler_rules(rules: Rules) -> None:
    leads, follows = (selector("dovetail_leader", {"instance": name}) for name in "ab")
    stale = selector("dovetail_watch_staleness_seconds", {"resource": "pods/v1", "instance": "a"})
    behind = selector("dovetail_watch_staleness_seconds", {"resource": "pods/v1", "instance": "b"})
    look = selector("dovetail_agent_look_age_seconds", {"instance": "n1:10352", "pod": "agent-x", "node": "n1"})
    rules.holds(
        [(leads, "1x9"), (follows, "0x9"), (stale, "3x9"), (behind, "41x9"), (look, "30x9")],
        value("sched:leaders:count", "5m", ({}, 1)),
        value("sched:cache_age", "5m", ({"resource": "pods/v1"}, 41)),
        value("agent:last_report_age", "5m", ({"instance": "n1:10352", "node": "n1"}, 30)),
    )
