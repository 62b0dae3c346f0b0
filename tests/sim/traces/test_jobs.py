# SPDX-License-Identifier: Apache-2.0
"""Philly job lists: lone pods and gangs, one VC or all, and refusals."""

from pathlib import Path

import pytest

from dovetail.core.model import CPU, GPU, MEMORY, Work
from dovetail.sim.traces.errors import TraceError
from dovetail.sim.traces.jobs import read_jobs

HEADER = "vc,job,submit_s,num_gpu,duration_s\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.csv"


@pytest.mark.parametrize(("gpus", "sizes"), [(8, [8]), (9, [8, 1]), (16, [8, 8]), (20, [8, 8, 4]), (1, [1])])
def test_a_job_becomes_pods_that_fit_a_node(file: Path, gpus: int, sizes: list[int]) -> None:
    file.write_text(f"{HEADER}x,0,1.5,{gpus},976569.9\n")
    (job,) = read_jobs(file, gpus_per_node=8)
    assert [pod.request.resources for pod in job.pods] == [((GPU, size),) for size in sizes]
    assert (job.at_ms, job.duration_ms) == (1500, 976_569_900)
    assert {pod.created_ms for pod in job.pods} == {1500}
    assert len({pod.uid for pod in job.pods}) == len({pod.key for pod in job.pods}) == len(sizes)
    if len(sizes) == 1:
        assert job.gang is None
        assert job.pods[0].gang == ""
    else:
        assert job.gang is not None
        assert (job.gang.min_count, job.gang.created_ms) == (len(sizes), 1500)
        assert {pod.gang for pod in job.pods} == {job.gang.id}
        assert {pod.namespace for pod in job.pods} == {job.gang.namespace}


def test_a_vc_is_a_namespace_and_can_be_read_alone(file: Path) -> None:
    file.write_text(f"{HEADER}x,0,0,1,60\nx-y,0,0,1,60\nx,1,0,1,60\n")
    assert [job.pods[0].key for job in read_jobs(file, 8, vcs=["x"])] == ["x/0", "x/1"]
    assert {job.pods[0].key for job in read_jobs(file, 8)} == {"x/0", "x/1", "x-y/0"}


def test_an_unknown_vc_is_refused_with_those_there_are(file: Path) -> None:
    file.write_text(f"{HEADER}b,0,0,1,60\na,0,0,1,60\n")
    with pytest.raises(TraceError, match="there is no 'c'; there are: a, b"):
        read_jobs(file, 8, vcs=["c"])


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("x,1,0,0,60", "num_gpu"),
        ("x,1,0,1.0,60", "num_gpu"),
        ("x,1,0,1,-60", "duration_s"),
        ("x,1,1e3,1,60", "submit_s"),
        ("x,1,,1,60", "submit_s"),
        ("x,0,0,1,60", "job"),
        ("x,a/b,0,1,60", "job"),
        (",1,0,1,60", "vc"),
    ],
)
def test_a_wrong_row_is_refused_whatever_vc_is_asked_for(file: Path, row: str, field: str) -> None:
    file.write_text(f"{HEADER}x,0,0,1,60\ny,0,0,1,60\n{row}\n")
    with pytest.raises(TraceError) as caught:
        read_jobs(file, 8, vcs=["y"])
    assert (caught.value.line, caught.value.field) == (4, field)


def test_optional_columns_add_facts_about_a_job(file: Path) -> None:
    more = "user,pods,cpu_milli,memory_mib,priority,family,max_runtime_s,checkpoint_s,startup_s"
    file.write_text(
        f"vc,job,submit_s,num_gpu,duration_s,{more}\n"
        "x,0,0,8,60,ada,4,2000,1024,7,train,90,30,5.5\n"
        "x,1,0,2,60,ada,,,,,,,,\n"
        "x,2,0,2,60,,,,,,,,,\n"
    )
    full, user, bare = read_jobs(file, 8)
    assert [pod.request.resources for pod in full.pods] == [((CPU, 2000), (MEMORY, 2**30), (GPU, 2))] * 4
    assert {(pod.user, pod.priority, pod.owner) for pod in full.pods} == {("ada", 7, "x/0")}
    assert full.pods[0].work == Work("train", 90_000, 30_000, 5500)
    assert full.gang is not None
    assert [job.pods[0].work.family for job in (user, bare)] == ["x/ada/2", "x/2"]
    assert (bare.pods[0].user, bare.pods[0].priority, bare.pods[0].request.resources) == ("", 0, ((GPU, 2),))


@pytest.mark.parametrize(
    ("column", "cell", "field"),
    [
        ("pods", "3", "pods"),
        ("pods", "x", "pods"),
        ("user", "a b", "user"),
        ("priority", "-1", "priority"),
        ("checkpoint_s", "30m", "checkpoint_s"),
        ("max_runtime_s", "1e3", "max_runtime_s"),
        ("cpu_milli", "0.5", "cpu_milli"),
    ],
)
def test_a_wrong_cell_names_its_line(file: Path, column: str, cell: str, field: str) -> None:
    file.write_text(f"vc,job,submit_s,num_gpu,duration_s,{column}\nx,0,0,8,60,\nx,1,0,8,60,{cell}\n")
    with pytest.raises(TraceError) as caught:
        read_jobs(file, 8)
    assert (caught.value.file, caught.value.line, caught.value.field) == (str(file), 3, field)


def test_missing_columns_are_named(file: Path) -> None:
    file.write_text("vc,job,submit,gpus\nx,0,0,1\n")
    with pytest.raises(
        TraceError, match="columns missing: submit_s, num_gpu, duration_s; found: vc, job, submit, gpus"
    ):
        read_jobs(file, 8)
