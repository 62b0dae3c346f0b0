# SPDX-License-Identifier: Apache-2.0
"""docs/how-to/questions.md: each of its commands answers its question, on a cluster with a scheduler."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from dovetail.cli import wait_report
from tests.cli.clusters import CommandCluster, command_cluster, node
from tests.cli.test_idle import write_history
from tests.kube.reading.test_gpu_exporters import agent
from tests.paths import ROOT

PAGE = ROOT / "docs/how-to/questions.md"
ROW = re.compile(r"\| ([^|]+\?) \|([^|]*)\| `(dovetail [^`]+)` \|")
IMAGE = ("--image", "registry.example/train:1.4")
# Patterns that the answer of each command has.
ANSWERS: dict[str, tuple[str, ...]] = {
    "dovetail jobs": (r"team-a/train .*Running .*gpu-", r"team-a/big .*Waiting"),
    "dovetail jobs -u ada": (r"team-a/train ", r"team-a/big "),
    "dovetail jobs -q research": (r"team-a/train ", r"team-a/big "),
    "dovetail jobs --node gpu-1": (r"team-a/(train|sweep)",),
    "dovetail jobs --sort-by -gpus": (r"(?s)team-a/(train|big) +ada.*team-a/sweep",),
    "dovetail jobs -s running --sort-by ends": (r"(?s)team-a/sweep.*team-a/train ",),
    "dovetail jobs -s failed": (r"team-a/broken.*Failed",),
    "dovetail jobs -s done": (r"team-a/short.*Completed", r"team-a/broken.*Failed"),
    "dovetail jobs -o csv": (r"^job,", r"(?m)^team-a/train,ada,research,16,Running,"),
    "dovetail events train": (r"bound +2 of 2", r"started +2 of 2"),
    "dovetail why big": (r"team-a/big.* waits", r"GangDoesNotFit|NoNodeFits"),
    "dovetail jobs big --start": (r"team-a/big .*Waiting.* in \d",),
    "dovetail queue": (r"1 +team-a/big +research +16 .* in \d",),
    "dovetail priority big": (r"team-a/big is number 1 of 1 in queue order: queue research",),
    "dovetail why train": (r"team-a/train.* is on node gpu-[123]",),
    "dovetail whatif submit big.yaml": (r"team-a/bigger .*(in \d|now)",),
    "dovetail defrag --shape 2x8": (r"2 pods with 8 GPUs each",),
    "dovetail logs train": (r"(?m)^\[0\] epoch 1$", r"(?m)^\[1\] epoch 2$"),
    "dovetail logs train --rank 0 --tail 1": (r"^epoch 2\n$",),
    "dovetail nodes": (r"gpu-1 ", r"gpu-3 "),
    "dovetail nodes --unhealthy": (r".",),
    "dovetail nodes gpu-1": (r"gpu-1 ",),
    "dovetail free": (r"NVIDIA-H100-80GB-HBM3: \d+ of 24 GPUs on 3 nodes are free",),
    "dovetail free --shape 4x8": (r"A gang of 4 pods of 8 GPUs each does not start now",),
    "dovetail top --once": (r"gpu-1", r"24 GPUs"),
    "dovetail doctor": (r"findings? of \d+ check",),
    "dovetail share": (r"research +", r"product +"),
    "dovetail share research --all": (r"research: allocated .*guarantee .*limit",),
    "dovetail whatif quota research --guarantee gpu=16": (r"research|no difference",),
    "dovetail run hello --image registry.example/train:1.4 --gpus 0 -- true": (r"Job team-a/hello created",),
    "dovetail run wide --image registry.example/train:1.4 --gpus 8xH100 --nodes 2 --dry-run -- torchrun train.py": (
        r"completions: 2",
        r"nvidia.com/gpu: '8'",
    ),
    "dovetail submit later.yaml": (r"team-a/later",),
    "dovetail lint later.yaml": (r"no finding",),
    "dovetail check later.yaml": (r"runs +team-a/later in", r"change +nothing"),
    "dovetail wait train --for started": (r"Job team-a/train: 2 pods run",),
    "dovetail hold big": (r"team-a/big.* held",),
    "dovetail release big": (r"team-a/big.* released",),
    "dovetail cancel -y big": (r"team-a/big",),
    "dovetail cancel -y -l dovetail.dev/user=bob": (r"team-a/sweep",),
    "dovetail queue create vision --parent research --guarantee gpu=4": (r"vision",),
    "dovetail queue stop product": (r"product.* stopped",),
    "dovetail queue resume product": (r"product",),
    "dovetail whatif drain gpu-3": (r"gpu-3|no difference",),
    "dovetail drain gpu-3 --no-wait --reason fan": (r"gpu-3",),
    "dovetail drain gpu-3 --undo": (r"gpu-3",),
    "dovetail status": (r"dovetail|Dovetail",),
    "dovetail snapshot cluster.json --redact": (r"cluster.json: \d+ objects",),
    "dovetail history --store history.db": (r"ml/train .*ada", r"The history goes from"),
    "dovetail history train --store history.db": (r"ml/train .*ada", r"train-x"),
    "dovetail report --store history.db --by user": (r"ada +", r"bob +"),
    "dovetail cost --store history.db --by team": (r"ml +", r"total +"),
    "dovetail idle --store history.db": (r"ml/train-x .*may hang",),
    "dovetail advise train --store history.db": (r"ml/train: not enough data",),
    "dovetail memory llama-3.1-70b": (r"GiB",),
    "dovetail instances --gpus 8 --nvlink": (r"\$",),
    "dovetail spot --save 1m --restart 2m --mtbi 12h --discount 60%": (r"every",),
}
CODES = {"dovetail doctor": (0, 1, 3), "dovetail status": (0, 1, 3), "dovetail top --once": (0, 3)}


def rows() -> list[tuple[str, str]]:
    return [(question, command) for question, _, command in ROW.findall(PAGE.read_text())]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    monkeypatch.setattr(wait_report, "EVERY_S", 0.05)
    monkeypatch.chdir(tmp_path)
    nodes = [node(f"gpu-{number}") for number in (1, 2, 3)]
    for one in nodes:
        one["metadata"]["labels"]["nvidia.com/gpu.count"] = "8"
    with command_cluster(tmp_path, *nodes, *(agent(one["metadata"]["name"]) for one in nodes), scheduler=True) as found:
        yield found


def prepare(cluster: CommandCluster) -> None:
    """Two queues; jobs that run, wait, have failed and are done; and two files."""

    def run(name: str, *more: str, **marks: str) -> None:
        annotated = [f"playground.dovetail.dev/{key.replace('_', '-')}={value}" for key, value in marks.items()]
        done = cluster.run("run", name, *IMAGE, *more, *(part for one in annotated for part in ("--annotation", one)))
        assert done.exit_code == 0, done.output

    for queue in ("research", "product"):
        assert cluster.run("queue", "create", queue).exit_code == 0
    run("short", "--gpus", "1", "-q", "product", "--user", "bob", run_seconds="0.1")
    run("broken", "--gpus", "1", "-q", "product", "--user", "bob", run_seconds="0.1", exit_code="1")
    for name, phase in (("short", "Succeeded"), ("broken", "Failed")):
        cluster.eventually(lambda name=name: cluster.phases(name), lambda found, phase=phase: found == [phase])
    run(
        "train",
        "--gpus",
        "8",
        "--nodes",
        "2",
        "-q",
        "research",
        "--user",
        "ada",
        "--time",
        "4h",
        log="epoch 1\nepoch 2",
    )
    cluster.eventually(lambda: cluster.phases("train"), lambda found: found == ["Running"] * 2)
    run("sweep", "--gpus", "8", "-q", "product", "--user", "bob", "--time", "1h")
    cluster.eventually(lambda: cluster.phases("sweep"), lambda found: found == ["Running"])
    run("big", "--gpus", "8", "--nodes", "2", "-q", "research", "--user", "ada", "--time", "2h")
    for name, nodes in (("later", "1"), ("bigger", "2")):
        made = cluster.run("run", name, *IMAGE, "--gpus", "8", "--nodes", nodes, "--time", "1h", "--dry-run")
        Path("big.yaml" if name == "bigger" else "later.yaml").write_text(made.stdout)
    write_history(Path("history.db"))
    reason = "status"
    cluster.eventually(
        lambda: [pod.get(reason, {}).get("conditions") for pod in cluster.pods() if "big-" in pod["metadata"]["name"]],
        lambda found: len(found) == 2 and all(found),
    )


def test_there_are_fifty_of_them_and_each_has_an_answer() -> None:
    commands = [command for _, command in rows()]
    assert len(commands) >= 50 and len(set(commands)) == len(commands)
    assert set(commands) == ANSWERS.keys()
    text = PAGE.read_text()
    assert text.count("`dovetail ") == len(commands), "a command is in a row that is not read here"


@pytest.mark.slow
def test_each_command_answers_its_question(cluster: CommandCluster) -> None:
    prepare(cluster)
    wrong = []
    for question, command in rows():
        done = cluster.run(*shlex.split(command)[1:])
        text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
        missing = [pattern for pattern in ANSWERS[command] if not re.search(pattern, text)]
        if done.exit_code not in CODES.get(command, (0,)) or missing:
            wrong.append(f"{question}\n$ {command}\nexit {done.exit_code}, without {missing}:\n{text}")
    assert not wrong, "\n\n".join(wrong)


def test_the_files_of_the_page_are_manifests_that_run_makes(cluster: CommandCluster) -> None:
    prepare(cluster)
    assert {one["kind"] for one in yaml.safe_load_all(Path("big.yaml").read_text())} == {"Service", "Job"}
