# SPDX-License-Identifier: Apache-2.0
"""The pages about the jobs of users print what the commands print."""

from __future__ import annotations

from datetime import datetime
from io import StringIO

import pytest

from dovetail.cli.console import Console
from dovetail.cli.events_report import show
from dovetail.cli.new_job import sentence
from dovetail.core.model import GPU
from dovetail.jobs.gpu_request import GpuRequest
from dovetail.jobs.kinds import JOB_KINDS
from dovetail.jobs.life import JobLife, LifeStep
from dovetail.jobs.manifests import JobRequest
from tests.cli.clusters import H100
from tests.docs.pages import page

REFUSAL = "GangDoesNotFit: the gang needs more room than is free now: needs 4 pods, 3 fit now"
STEPS = [
    ("created", "18:26:02", "18:26:02", 0, "Job team-a/train"),
    ("pods created", "18:26:02", "18:26:02", 4, ""),
    ("refused", "18:26:02", "18:42:14", 4, REFUSAL),
    ("bound", "18:42:20", "18:42:20", 4, "to gpu-0, gpu-1, gpu-2, gpu-3"),
    ("started", "18:42:31", "18:42:33", 4, ""),
    ("ended", "21:40:07", "21:40:09", 4, "succeeded"),
]


def at_ms(time: str) -> int:
    return round(datetime.fromisoformat(f"2026-11-26T{time}+00:00").timestamp() * 1000)


@pytest.mark.parametrize("name", ["docs/how-to/run-a-job.md", "docs/reference/cli.md"])
def test_the_life_of_a_job(name: str) -> None:
    steps, before_ms = list[LifeStep](), at_ms(STEPS[0][1])
    for step, first, last, pods, detail in STEPS:
        steps.append(LifeStep(step, at_ms(first), at_ms(last), pods, detail, at_ms(first) - before_ms))
        before_ms = at_ms(first)
    printed = StringIO()
    show(JobLife("team-a/train", 4, "succeeded", tuple(steps)), at_ms("21:45:12"), Console(file=printed))
    (shown,) = [block.text for block in page(name).blocks if block.text.startswith("time (UTC)")]
    assert shown.split("\n") == printed.getvalue().split("\n")[: shown.count("\n") + 1]


def test_the_sentence_that_run_prints() -> None:
    gpus = GpuRequest(GPU, 8, model="H100")
    request = JobRequest("train", "team-a", "x", gpus=gpus, nodes=4, products=(H100,), queue="research")
    (shown,) = [block.text for block in page("docs/how-to/run-a-job.md").blocks if block.text.startswith("Job team-a/")]
    assert shown.rstrip("\n") == sentence(request, "job", kind_asked=False)


def test_the_kinds_of_object_that_a_job_can_be() -> None:
    (row,) = [
        row for row in page("docs/reference/cli.md").section("Jobs by name").rows("JOB") if row.code[0] == ["train"]
    ]
    named = row.cells[1].partition(": a ")[2].partition(";")[0].replace(" or ", ", ").split(", ")
    assert set(named) == {kind.resource.kind for kind in JOB_KINDS}
