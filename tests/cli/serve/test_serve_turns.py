# SPDX-License-Identifier: Apache-2.0
"""`dovetail serve turns`, `wake` and `sleep`: what they show, ask for and call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dovetail.cli import cli
from tests.cli.answers import answer
from tests.sleeping.world import World, world


@pytest.fixture
async def some() -> AsyncIterator[World]:
    async with world() as found:
        yield found


async def call(some: World, folder: Path, *words: str) -> Result:
    config = some.playground.kubeconfig(folder / "config")
    words = ("serve", *words, "-n", "serving", "--kubeconfig", str(config))
    return await asyncio.to_thread(CliRunner().invoke, cli, words)


async def test_it_shows_what_is_awake_and_changes_nothing(some: World, tmp_path: Path) -> None:
    some.add("llama")
    done = await call(some, tmp_path, "turns", "-o", "json")
    (found,) = answer(done.stdout, "InstanceTurn")
    assert (found["name"], found["state"], found["gpus"]) == ("llama", "awake", ["n1/0"])
    assert (found["awakeMib"], found["asleepMib"]) == (70, 5)
    table = await call(some, tmp_path, "turns")
    assert "llama" in table.stdout and "70 MiB" in table.stdout
    assert some.engines["llama"].calls == [] and "dovetail.dev/turn" not in some.annotations("llama")


async def test_none_takes_turns(some: World, tmp_path: Path) -> None:
    done = await call(some, tmp_path, "turns")
    assert (done.exit_code, done.stdout) == (0, "No instance of this namespace takes turns.\n")


async def test_an_instance_asks_and_sleeps(some: World, tmp_path: Path) -> None:
    some.add("llama")
    done = await call(some, tmp_path, "wake", "llama")
    assert (done.exit_code, done.stdout) == (0, "serving/llama wants to be awake\n")
    assert some.annotations("llama")["dovetail.dev/wake-wanted"].startswith("20")
    done = await call(some, tmp_path, "sleep", "llama")
    assert (done.exit_code, done.stdout) == (0, "serving/llama sleeps\n")
    assert some.engines["llama"].sleeping and "dovetail.dev/wake-wanted" not in some.annotations("llama")
    assert some.annotations("llama")["dovetail.dev/turn"].startswith("asleep ")


async def test_an_engine_that_refuses_is_reported_with_its_answer(some: World, tmp_path: Path) -> None:
    some.add("llama").faults["sleep"] = 404
    done = await call(some, tmp_path, "sleep", "llama")
    assert done.exit_code == 1 and "POST sleep" in done.stderr and "404" in done.stderr


@pytest.mark.parametrize("verb", ["wake", "sleep"])
async def test_a_pod_that_takes_no_turns_is_refused(some: World, tmp_path: Path, verb: str) -> None:
    some.add("plain", asleep=0)
    done = await call(some, tmp_path, verb, "plain")
    assert done.exit_code == 1 and "serving/plain takes no turns" in done.stderr
    assert some.engines["plain"].calls == []


async def test_metrics_are_only_of_the_process_that_gives_turns(some: World, tmp_path: Path) -> None:
    done = await call(some, tmp_path, "turns", "--listen", "127.0.0.1:0")
    assert done.exit_code == 2 and "--listen is for --give" in done.stderr
