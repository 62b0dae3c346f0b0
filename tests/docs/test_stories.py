# SPDX-License-Identifier: Apache-2.0
"""The tutorial and the demo print what the pages and the pictures show.

The tutorial is carried out on the playground: its files are the YAML blocks, its commands the console blocks, and each
`dovetail why` must answer what stands below it. Which of several equal nodes or pods is taken depends on uids, so
numbers of nodes count as equal, and lines are compared without their order.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.cli.cluster import now_ms
from dovetail.cli.why_report import show
from dovetail.core.policy import Policy, unhurried
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.reading.state import read_cluster
from dovetail.playground import Playground
from dovetail.scheduler.serve import SchedulerOptions, run
from dovetail.views.why import why
from tests.docs.pages import Block, page
from tests.live.conftest import eventually
from tests.paths import ROOT
from tests.terminal import environment, on_terminal
from tools import pictures

WIDTH = 100


def lines(text: str) -> list[str]:
    """What counts of an output."""
    text = re.sub(r"\b(gpu-(?:node-)?|train-)\d\b", r"\1N", text)
    return sorted(" ".join(line.split()) for line in text.splitlines() if line.strip())


class Reader:
    """A reader of the tutorial, step by step."""

    def __init__(self, playground: Playground) -> None:
        self.playground = playground
        self.files: dict[str, list[dict[str, Any]]] = {}

    def save(self, block: Block) -> None:
        document = yaml.safe_load(block.text)
        (name,) = re.findall(r"`(\w+\.yaml)`", block.before)
        self.files[name] = document["items"]

    def apply(self, document: dict[str, Any]) -> None:
        # Anchors make documents share parts, and what is stored must not change with what is written.
        self.playground.put(deepcopy(document))

    def annotate(self, name: str, changes: list[str]) -> None:
        saved = [document for documents in self.files.values() for document in documents]
        group = next(d for d in saved if (d["kind"], d["metadata"]["name"]) == ("PodGroup", name))
        for change in changes:
            key, _, value = change.partition("=")
            if value:
                group["metadata"]["annotations"][key] = value
            else:
                del group["metadata"]["annotations"][key.removesuffix("-")]
        self.apply(group)

    async def follow(self, command: str, printed: list[str]) -> None:
        match command.split():
            case ["kubectl", "apply", "-f", name]:
                for document in self.files[name]:
                    self.apply(document)
            case ["kubectl", "delete", "pod", *pods, "--force"]:
                for pod in pods:
                    self.playground.delete("pods", "default", pod)
            case ["kubectl", "annotate", "podgroup", name, *changes]:
                self.annotate(name, changes)
            case ["dovetail", "why", pod]:
                await self.ask(pod, printed)
            case (
                ["dovetail", "scheduler"]
                | ["kubectl", "get", *_]
                | ["kubectl", "create", "namespace", _]
                | ["make" | "eval" | "export", *_]
            ):
                pass
            case _:
                raise AssertionError(f"a command that this test cannot carry out: {command}")

    async def ask(self, pod: str, printed: list[str]) -> None:
        wanted = lines("\n".join(printed))
        await eventually(lambda: self.why(pod), lambda answer: lines(answer) == wanted)

    async def why(self, pod: str) -> str:
        state = (await read_cluster(ClusterConfig(self.playground.url), unhurried(Policy()), "dovetail")).state
        return on_terminal(lambda out: show(why(state, f"default/{pod}", now_ms()), out, now_ms()), WIDTH)


@asynccontextmanager
async def scheduled() -> AsyncIterator[Playground]:
    playground = Playground(stop_delay_s=0.0)
    config = ClusterConfig(await playground.start())
    scheduler = asyncio.create_task(run(config, SchedulerOptions(leader_elect=False, listen="")))
    yield playground
    scheduler.cancel()
    await asyncio.gather(scheduler, return_exceptions=True)
    await playground.stop()


async def test_the_tutorial() -> None:
    async with scheduled() as playground:
        reader = Reader(playground)
        for block in page("docs/tutorial.md").blocks:
            if block.language == "yaml":
                reader.save(block)
            for command, printed in block.commands:
                await reader.follow(command, printed)


@pytest.mark.slow
def test_the_demo_prints_what_the_readme_and_the_tutorial_show() -> None:
    (shown,) = [block.text for block in page("docs/tutorial.md").blocks if block.language == "text"]
    (drawn,) = [picture for picture in pictures.PICTURES if picture.title == "make demo"]
    assert str(drawn.path.relative_to(ROOT)) in page("README.md").links
    demo = subprocess.run(
        [Path(sys.executable).with_name("dovetail"), "demo"],
        env=os.environ | environment(WIDTH),
        capture_output=True,
        text=True,
        check=True,
    )
    printed = set(lines(without_examples(demo.stdout)))
    assert set(lines(without_examples(shown))) <= printed
    assert set(lines(without_examples(pictures.text(drawn.path.read_text())))) <= printed


@pytest.mark.slow
def test_the_demo_fits_one_screen() -> None:
    done = CliRunner().invoke(cli, ["demo"], env={"COLUMNS": "100", "NO_COLOR": "1"})
    shown = done.output.rstrip().splitlines()
    assert len(shown) <= 22 and max(map(len, shown)) <= 100


def without_examples(text: str) -> str:
    """Times differ, and so do the nodes among equal ones."""
    return re.sub(r"gpu-node-1, gpu-node-2", "gpu-node-1", re.sub(r"(?m)^ *[0-9.]+ s +", "", text))


@pytest.mark.parametrize("picture", [p for p in pictures.PICTURES if "--at" in p.command], ids=lambda p: p.name)
def test_pictures_show_what_is_printed(picture: pictures.Picture) -> None:
    drawn = [line.split() for line in pictures.text(picture.path.read_text()).splitlines() if line.strip()]
    assert drawn == [line.split() for line in pictures.printed(picture).plain.splitlines() if line.strip()], (
        "make pictures draws them"
    )


def test_pictures_fetch_nothing() -> None:
    for path in sorted(pictures.FOLDER.glob("*.svg")):
        assert set(re.findall(r"\w+://[^\"')\s]+", path.read_text())) == {"http://www.w3.org/2000/svg"}
