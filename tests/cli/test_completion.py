# SPDX-License-Identifier: Apache-2.0
"""What a shell offers: commands, options, and the names of a live cluster; and nothing where there is no answer."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from msgspec import Raw

from dovetail.cli import cli, completion
from dovetail.kube.api.client import Client
from dovetail.kube.objects.views import NODE_LISTS, QUEUE_SHARES, ViewDocument
from dovetail.playground import Fault, Playground
from tests.live.conftest import eventually
from tests.patience import PATIENCE_S

OBJECTS = """
apiVersion: v1
kind: Node
metadata: {name: gpu-1}
---
apiVersion: v1
kind: Namespace
metadata: {name: ml}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: queues.dovetail.dev}
spec:
  group: dovetail.dev
  names: {plural: queues, singular: queue, kind: Queue, listKind: QueueList}
  scope: Cluster
  versions: [{name: v1alpha1, served: true, storage: true}]
---
apiVersion: dovetail.dev/v1alpha1
kind: Queue
metadata: {name: train-team}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: ml}
spec:
  completionMode: Indexed
  completions: 1
  parallelism: 1
  template: {spec: {restartPolicy: Never, containers: [{name: main, image: x}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: notebook, namespace: default}
spec: {containers: [{name: main, image: x}]}
"""


@pytest.fixture
async def playground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Playground]:
    playground = Playground()
    await playground.start()
    for document in yaml.safe_load_all(OBJECTS):
        playground.put(document)

    async def pods() -> int:
        return len(playground.store.list("pods"))

    await eventually(pods, lambda found: found == 2)
    monkeypatch.setenv("KUBECONFIG", str(playground.kubeconfig(tmp_path / "kubeconfig")))
    yield playground
    await playground.stop()


def offered(*words: str) -> list[str]:
    """The completions of the last word."""
    *before, incomplete = words
    found = ShellComplete(cli, {}, "dovetail", "_DOVETAIL_COMPLETE").get_completions(list(before), incomplete)
    return [one.value for one in found]


async def completed(*words: str) -> list[str]:
    return await asyncio.to_thread(offered, *words)


def test_commands_and_options_are_offered_without_importing_a_command() -> None:
    assert offered("sha") == ["share"]
    assert {"why", "queue", "jobs"} <= set(offered(""))
    assert "--kubeconfig" in offered("why", "--")
    assert offered("whatif", "dr") == ["drain"]
    code = (
        "import sys; from click.shell_completion import ShellComplete; from dovetail.cli import cli; "
        "print([c.value for c in ShellComplete(cli, {}, 'dovetail', 'X').get_completions([], 'q')], "
        "[name for name in sys.modules if name.startswith('dovetail.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['queue'] []\n"


async def test_the_names_of_the_cluster_are_offered(playground: Playground) -> None:
    assert await completed("why", "-n", "ml", "tra") == ["train", *await pod_names(playground), "train-team"]
    assert await completed("why", "queue/") == ["queue/train-team"]
    assert await completed("why", "ml/train") == ["ml/train", *(f"ml/{name}" for name in await pod_names(playground))]
    assert await completed("cancel", "job/note") == ["job/notebook"]
    assert await completed("events", "job/ml/train") == [f"job/{name}" for name in await completed("why", "ml/train")]
    assert await completed("queue", "stop", "t") == ["train-team"] and await completed("queue", "st") == ["stop"]
    assert await completed("why", "note") == ["notebook"]
    assert await completed("priority", "") == ["notebook"]
    assert await completed("queue", "t") == await completed("share", "t") == ["train-team"]
    assert {"create", "stop", "train-team"} <= set(await completed("queue", ""))
    assert await completed("nodes", "g") == await completed("whatif", "drain", "") == ["gpu-1"]
    assert await completed("drain", "gpu-1", "g") == ["gpu-1"]
    assert "ml" in await completed("why", "-n", "m")
    assert await completed("why", "--context", "") == ["playground"]
    assert await completed("jobs", "-q", "t") == await completed("run", "-q", "") == ["train-team"]
    assert await completed("jobs", "--node", "g") == await completed("whatif", "add-nodes", "--like", "") == ["gpu-1"]
    assert await completed("jobs", "-s", "running,w") == ["running,waiting"]


async def pod_names(playground: Playground) -> list[str]:
    return [name for name in await completed("why", "ml/train-") for name in [name.removeprefix("ml/")]]


async def test_those_of_a_file_are_offered_in_their_place(playground: Playground, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: other}\n")
    assert await completed("why", "-f", str(file), "") == ["other"]
    file.write_text("apiVersion: [")
    assert await completed("why", "-f", str(file), "") == []


@pytest.mark.parametrize("status", [403, 404, 500])
async def test_what_may_not_be_read_has_no_names(playground: Playground, status: int) -> None:
    playground.faults.add(Fault("answer", "GET", "pods", status=status))
    assert await completed("why", "tra") == ["train-team"]


async def test_users_that_may_list_no_nodes_get_those_that_the_scheduler_shows(
    playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    for plural in ("nodes", "queues"):
        playground.faults.add(Fault("answer", "GET", plural, status=403))
    assert await completed("nodes", "") == await completed("share", "") == []
    views: dict[str, object] = {
        NODE_LISTS.path("default"): {"nodes": [{"node": "gpu-1", "used": 3}, {"node": "other"}]},
        QUEUE_SHARES.path("default"): [{"queue": "train-team", "depth": 0}],
    }
    request = Client.request

    async def answered(client: Client, method: str, path: str, *args: Any, **options: Any) -> Any:
        if path in views:
            return ViewDocument(answer=Raw(msgspec.json.encode(views[path])))
        return await request(client, method, path, *args, **options)

    monkeypatch.setattr(Client, "request", answered)
    assert await completed("nodes", "g") == await completed("jobs", "--node", "g") == ["gpu-1"]
    assert await completed("share", "") == ["train-team"]


@pytest.mark.slow
async def test_a_cluster_that_does_not_answer_is_no_longer_waited_for(playground: Playground) -> None:
    playground.faults.add(Fault("delay", "GET", "nodes", delay_s=60.0))
    began_s = time.monotonic()
    assert await completed("nodes", "g") == []
    assert time.monotonic() - began_s < 10


def test_without_a_kubeconfig_there_are_no_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert offered("nodes", "g") == offered("nodes", "--context", "") == []


async def test_a_real_bash_completes(playground: Playground, tmp_path: Path) -> None:
    (tmp_path / "dovetail").write_text(f"#!{sys.executable}\nfrom dovetail.cli import main\nmain()\n")
    (tmp_path / "dovetail").chmod(0o755)
    script = (
        'set -e; eval "$(dovetail completion bash)"; COMP_WORDS=(dovetail why -n ml train-t); COMP_CWORD=4; '
        "_dovetail_completion dovetail; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
    )
    out, err = await process.communicate()
    assert (process.returncode, out.decode(), err.decode()) == (0, "train-team\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0 and f"_DOVETAIL_COMPLETE={shell}_complete" in done.output


STARTS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
BEFORE = {
    "bash": "bind 'set bell-style none'",
    "zsh": "autoload -U compinit; compinit -u -D; unsetopt beep",
    "fish": "function fish_prompt; echo '> '; end",
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_real_shell_completes_a_command(shell: str, tmp_path: Path) -> None:
    """Typed in a terminal: the shell writes the end of the word, and a blank behind it."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    script = tmp_path / "completion"
    script.write_text(CliRunner().invoke(cli, ["completion", shell]).output)
    program = tmp_path / "dovetail"
    program.write_text(f"#!{sys.executable}\nfrom dovetail.cli import main\nmain()\n")
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb",
        "PYTHONPATH": ":".join(sys.path),
    }  # fmt: skip
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(STARTS[shell][0], STARTS[shell], environment)
    try:
        os.write(terminal, f"{BEFORE[shell]}; source {script}; echo rea''dy\n".encode())
        read_until(terminal, "ready")
        os.write(terminal, b"dovetail sha\t")
        read_until(terminal, "share ")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def read_until(terminal: int, wanted: str) -> None:
    """Read what the shell writes up to this text; control sequences are left out."""
    text, deadline_s = "", time.monotonic() + PATIENCE_S
    while wanted not in re.sub(r"\x1b(\[[0-9;?]*[a-zA-Z]|[=>]|\][^\x07]*\x07)", "", text):
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline_s - time.monotonic()))
        assert ready, repr(text)
        text += os.read(terminal, 4096).decode(errors="replace")


async def test_a_real_kubectl_completes_and_runs_the_plugin(playground: Playground, tmp_path: Path) -> None:
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("there is no kubectl")
    for name, function in (("kubectl-dovetail", "cli:main"), ("kubectl_complete-dovetail", "cli.completion:kubectl")):
        module, _, called = function.partition(":")
        file = tmp_path / name
        file.write_text(f"#!{sys.executable}\nfrom dovetail.{module} import {called}\n{called}()\n")
        file.chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}

    async def run(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(kubectl, *arguments, stdout=subprocess.PIPE, env=environ)
        return (await process.communicate())[0].decode()

    assert "gpu-1\n:4\n" in await run("__complete", "dovetail", "nodes", "g")
    assert (await run("dovetail", "why", "--help")).startswith("Usage: kubectl dovetail why ")


async def test_kubectl_is_answered_in_its_form(
    playground: Playground, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-dovetail", "nodes", "g"])
    await asyncio.to_thread(completion.kubectl)
    assert capsys.readouterr().out == "gpu-1\n:4\n"
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-dovetail", "sha"])
    await asyncio.to_thread(completion.kubectl)
    name, _, rest = capsys.readouterr().out.partition("\t")
    assert name == "share" and rest.endswith("\n:4\n")
