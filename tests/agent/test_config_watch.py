# SPDX-License-Identifier: Apache-2.0
"""Each node has the configuration that its label names, and takes up another one as it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dovetail.agent import config_watch as module
from dovetail.agent.config import AgentConfigError, Config
from dovetail.agent.config_watch import LABEL, Configuring, chosen
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.playground import Playground
from tests.agent.agents import until

MIXED, SINGLE, BAD = "flags: {migStrategy: mixed}\n", "flags: {migStrategy: single}\n", "flags: {migStrategy: mixd}\n"


def files(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        new = folder / f"..{name}"
        new.write_text(text)
        new.rename(folder / name)
    return folder


@pytest.mark.parametrize(
    ("there", "label", "counts"),
    [
        (("default", "other"), "other", "other"),
        (("default", "other"), "", "default"),
        (("config.yaml",), "", "config.yaml"),
        (("default",), "default", "default"),
    ],
)
def test_the_label_names_the_file_that_counts(tmp_path: Path, there: tuple[str, ...], label: str, counts: str) -> None:
    (tmp_path / "..data").mkdir()
    files(tmp_path, **dict.fromkeys(there, ""))
    assert chosen(tmp_path, label) == tmp_path / counts
    assert chosen(tmp_path / there[0], "whatever") == tmp_path / there[0]


def test_a_label_of_no_file_and_a_node_without_a_label_are_reported(tmp_path: Path) -> None:
    files(tmp_path, shared="", whole="")
    with pytest.raises(AgentConfigError, match=r"names shard, which is not there; nearest valid value: shared"):
        chosen(tmp_path, "shard")
    with pytest.raises(
        AgentConfigError, match=r"no label nvidia\.com/device-plugin\.config, and of 2 files none is called"
    ):
        chosen(tmp_path, "")


class Bench:
    def __init__(self, api: Playground, client: Client) -> None:
        self.api, self.client = api, client
        self.heard: list[Config] = []
        self.faults: list[str] = []
        self.configuring: Configuring

    def fault_changed(self) -> None:
        self.faults.append(self.configuring.fault.partition(":")[0])

    def label(self, value: str) -> None:
        labels = {LABEL: value} if value else {}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels}}
        self.api.put(node)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    api = Playground(start_delay_s=0.0)
    await api.start()
    async with Client(ClusterConfig(api.url)) as client:
        yield Bench(api, client)
    await api.stop()


async def test_a_change_of_the_label_or_of_the_file_counts_at_once_and_a_bad_one_changes_nothing(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench.label("")
    folder = files(tmp_path / "configs", default="", mixed=MIXED, single=SINGLE)
    configuring = bench.configuring = Configuring(bench.client, "n1", folder)
    assert await configuring.first() == Config()
    task = asyncio.create_task(configuring.run(bench.heard.append, bench.fault_changed))
    try:
        bench.label("mixed")
        await until(lambda: [one.mig_strategy for one in bench.heard] == ["mixed"])
        files(folder, mixed=SINGLE)
        await until(lambda: [one.mig_strategy for one in bench.heard] == ["mixed", "single"])
        # The same under another name is no change.
        bench.label("single")
        files(folder, single=BAD)
        await until(lambda: "nearest valid value: mixed" in configuring.fault)
        assert configuring.fault.startswith("the configuration of before stays: ")
        bench.label("nowhere")
        await until(lambda: "names nowhere" in configuring.fault)
        bench.label("default")
        await until(lambda: len(bench.heard) == 3)
        assert bench.heard[-1] == Config() and configuring.fault == ""
        # Each is reported once, and once that it is over.
        assert bench.faults == ["the configuration of before stays", "the configuration of before stays", ""]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_where_things_are_is_settled_at_the_start(bench: Bench, tmp_path: Path) -> None:
    folder = files(tmp_path / "configs", one="flags: {nvidiaDriverRoot: /a}\n")
    configuring = bench.configuring = Configuring(bench.client, "n1", folder / "one")
    assert (await configuring.first()).driver_root == Path("/a")
    task = asyncio.create_task(configuring.run(bench.heard.append, bench.fault_changed))
    try:
        files(folder, one="flags: {nvidiaDriverRoot: /b, migStrategy: mixed}\n")
        await until(lambda: bool(bench.heard))
        assert (bench.heard[0].driver_root, bench.heard[0].mig_strategy) == (Path("/a"), "mixed")
        assert configuring.fault.endswith("flags.nvidiaDriverRoot: counts from the next start of the agent")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_file_that_is_written_in_place_is_found_by_looking(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.05)
    file = files(tmp_path / "configs", one=SINGLE) / "one"
    configuring = bench.configuring = Configuring(bench.client, "n1", file)
    await configuring.first()
    task = asyncio.create_task(configuring.run(bench.heard.append, bench.fault_changed))
    try:
        file.write_text(MIXED)
        await until(lambda: [one.mig_strategy for one in bench.heard] == ["mixed"])
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
