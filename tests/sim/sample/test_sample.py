# SPDX-License-Identifier: Apache-2.0
"""The traces that Dovetail ships: they agree with their README and with the published ones, and are in the wheel."""

import hashlib
import tomllib
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import dovetail
from dovetail.core.model import GPU, WHOLE_GPU_MILLI
from dovetail.sim import sample
from dovetail.sim.traces.jobs import read_jobs
from dovetail.sim.traces.openb import has_times, read_nodes, read_pods, unknown_models

PACKAGE = Path(dovetail.__file__).parent
ROOT = PACKAGE.parent.parent


def test_the_readme_has_the_checksum_of_every_file() -> None:
    folder = PACKAGE / "sim" / "sample"
    readme = (folder / "README.md").read_text()
    files = sorted(folder.glob("*.csv.gz"))
    assert [file.name for file in files] == [sample.NODES.name, sample.PODS.name, sample.BURSTS.name]
    for file in files:
        line = next(line for line in readme.splitlines() if f"`{file.name}`" in line)
        assert hashlib.sha256(file.read_bytes()).hexdigest() in line
        assert file.name.removesuffix(".gz") in (ROOT / "NOTICE").read_text()


def test_the_numbers_are_those_of_the_paper() -> None:
    nodes, jobs = read_nodes(sample.NODES), read_pods(sample.PODS)
    gpus = sum(dict(node.allocatable).get(GPU, 0) for node in nodes)
    requests = [job.pods[0].request for job in jobs]
    whole = Counter(dict(request.resources).get(GPU, 0) for request in requests)
    shares = sum(request.gpu_milli > 0 for request in requests)
    wanted_milli = sum(dict(r.resources).get(GPU, 0) * WHOLE_GPU_MILLI + r.gpu_milli for r in requests)
    assert (len(nodes), gpus, len(jobs)) == (1213, 6212, 8152)
    assert (shares, whole) == (3078, {0: 3078 + 1088, 1: 3911, 2: 16, 4: 15, 8: 44})
    assert round(1000 * wanted_milli / (gpus * WHOLE_GPU_MILLI)) == 980
    assert has_times(jobs)
    assert sum(job.duration_ms is None for job in jobs) == 897
    assert unknown_models(nodes, jobs) == {}


def test_the_excerpt_has_jobs_of_ten_virtual_clusters() -> None:
    jobs = read_jobs(sample.BURSTS, 64)
    assert Counter(Counter(job.pods[0].namespace for job in jobs).values()) == {120: 10}
    gpus = [dict(job.pods[0].request.resources)[GPU] for job in jobs]
    assert (min(gpus), max(gpus)) == (1, 64)
    assert min(job.duration_ms or 0 for job in jobs) >= 20 * 60_000


def test_the_wheel_has_it() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["dovetail"]
    for file in (PACKAGE / "sim" / "sample").glob("*.*"):
        inside = str(file.relative_to(PACKAGE))
        assert file.suffix == ".py" or any(fnmatch(inside, pattern) for pattern in patterns), inside
