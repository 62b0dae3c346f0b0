# SPDX-License-Identifier: Apache-2.0
"""What containers get of the driver, held side by side with what `nvidia-ctk cdi generate` writes for the same."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.agent.cdi import specification
from dovetail.agent.machine.driver_files import DriverFiles
from dovetail.agent.machine.host import Gpu, Host
from tests.paths import ROOT
from tests.referee.driver_trees import INSTALLATIONS, Shelf, install
from tools.standin import Standin
from tools.toolkit import toolkit

DIFFERENCES = {
    "env NVIDIA_CTK_LIBCUDA_DIR": "theirs",
    "hook update-application-profile": "theirs",
    "hook apply-cuda-memory-limits": "theirs",
    "env of hooks NVIDIA_CTK_DEBUG": "theirs",
    "permission m": "theirs",
}
"""What only one side has, by purpose; docs/reference/cdi.md has the reason. One that no machine shows any more fails
too."""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))


def items(spec: dict[str, Any], uuid: str) -> Counter[str]:
    """All that a container with this GPU gets, a line each; the order of hooks counts, that of all else does not."""
    own = next(device["containerEdits"] for device in spec["devices"] if device["name"] == uuid)
    found: Counter[str] = Counter()
    for edits in (spec["containerEdits"], own):
        found.update(f"env {env.partition('=')[0]}" for env in edits.get("env", ()))
        for node in edits.get("deviceNodes", ()):
            found[f"node {node['path']} from {node.get('hostPath', node['path'])}"] += 1
            found.update({f"permission {letter}" for letter in node["permissions"]} - {*found})
        for mount in edits.get("mounts", ()):
            options = ",".join(sorted(mount["options"]))
            found[f"mount {mount['hostPath']} at {mount['containerPath']} with {options}"] += 1
        found.update(_of_hooks(edits.get("hooks", ())))
    return found


def _of_hooks(hooks: list[dict[str, Any]]) -> Iterator[str]:
    names: list[str] = []
    yield from sorted({f"env of hooks {env.partition('=')[0]}" for hook in hooks for env in hook.get("env", ())})
    for hook in hooks:
        _, name, *arguments = hook["args"]
        names.append(name)
        if name in ("create-symlinks", "update-ldcache"):
            yield from (f"{name} {value}" for value in arguments if not value.startswith("--"))
        elif f"hook {name}" in DIFFERENCES:
            yield f"hook {name}"
        else:
            yield f"hook {name} {hook['hookName']}" + "".join(f" {argument}" for argument in arguments)
        assert Path(hook["path"]).name == "nvidia-cdi-hook"
    order = ["create-symlinks", "enable-cuda-compat", "update-ldcache", "disable-device-node-modification"]
    known = [name for name in dict.fromkeys(names) if name in order]
    assert known == [name for name in order if name in known]


def name_of(item: str, root: Path) -> str:
    """A difference as it is listed."""
    return f"mount {item.partition(' at ')[2].partition(' with ')[0]}" if item.startswith("mount ") else item


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes are made by root alone")
def test_a_container_gets_what_nvidias_toolkit_gives_it_but_for_what_is_listed(
    nvidia_ctk: Path, shelf: Shelf, tmp_path: Path
) -> None:
    seen: set[str] = set()
    machine = Standin(tmp_path / "machine", "small-2numa")
    for number, (name, what) in enumerate(INSTALLATIONS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        root, version = folder / "root", machine.description.driver
        install(root, what, version, shelf, machine.library)
        (root / "dev").mkdir()
        cards = [gpu.uuid for gpu in machine.description.gpus]
        for node in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *(f"nvidia{i}" for i in range(len(cards)))):
            os.mknod(root / "dev" / node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        hook = root / "usr/bin/nvidia-cdi-hook"
        theirs = toolkit.generate(nvidia_ctk, root, root, hook, machine.environment)
        files = DriverFiles(root, root / "dev", machine.proc, machine.sysfs)
        gpus = tuple(Gpu(i, i, uuid, "", f"0000:{i:02x}:00.0", 0) for i, uuid in enumerate(cards))
        host = Host(driver=version, gpus=gpus)
        spec = json.loads(
            json.dumps(specification("dovetail.dev/gpu", {g.uuid: files.gpu(g) for g in gpus}, files.common(host)))
        )
        for uuid in cards[:2]:
            left, right = items(theirs, uuid), items(spec, uuid)
            only = {"theirs": left - right, "ours": right - left}
            named = {name_of(item, root): side for side, lacking in only.items() for item in lacking}
            assert {item: side for item, side in named.items() if DIFFERENCES.get(item) != side} == {}, name
            seen |= {*named}
    assert seen == {*DIFFERENCES}


def test_the_differences_are_in_the_reference() -> None:
    page = (ROOT / "docs/reference/cdi.md").read_text()
    assert [name for name in DIFFERENCES if f"`{name.split()[-1]}`" not in page] == []
    assert toolkit.VERSION.removeprefix("v") in page
