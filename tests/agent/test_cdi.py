# SPDX-License-Identifier: Apache-2.0
"""Specification files for container runtimes, and the folder that they are in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dovetail.agent.cdi import GPU_KIND, CdiError, CdiFolder, DeviceNode, Edits, Hook, Mount, specification

GPU = Edits(device_nodes=(DeviceNode("/dev/nvidia0"),))
NAME = "dovetail.dev-gpu"


def test_a_specification_has_all_edits() -> None:
    edits = Edits(
        (("A", "b=c"),),
        (DeviceNode("/dev/nvidia0", "/host/dev/nvidia0", 195, 0), DeviceNode("/dev/nvidiactl", permissions="r")),
        (Mount("/driver/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.1"),),
        (Hook("/usr/bin/nvidia-cdi-hook", ("nvidia-cdi-hook", "update-ldcache"), env=("X=1",)),),
    )
    found = specification(GPU_KIND, {"GPU-1": edits}, Edits(env=(("NVIDIA_VISIBLE_DEVICES", "void"),)))
    assert found == {
        "cdiVersion": "0.5.0",
        "kind": "dovetail.dev/gpu",
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
        "devices": [
            {
                "name": "GPU-1",
                "containerEdits": {
                    "env": ["A=b=c"],
                    "deviceNodes": [
                        {
                            "path": "/dev/nvidia0",
                            "hostPath": "/host/dev/nvidia0",
                            "type": "c",
                            "major": 195,
                            "minor": 0,
                            "permissions": "rw",
                        },
                        {"path": "/dev/nvidiactl", "permissions": "r"},
                    ],
                    "mounts": [
                        {
                            "hostPath": "/driver/usr/lib/libcuda.so.1",
                            "containerPath": "/usr/lib/libcuda.so.1",
                            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                        }
                    ],
                    "hooks": [
                        {
                            "hookName": "createContainer",
                            "path": "/usr/bin/nvidia-cdi-hook",
                            "args": ["nvidia-cdi-hook", "update-ldcache"],
                            "env": ["X=1"],
                        }
                    ],
                },
            }
        ],
    }


@pytest.mark.parametrize(
    "devices, version",
    [
        ({"GPU-1": GPU}, "0.3.0"),
        ({"1": GPU}, "0.5.0"),
        ({"GPU-1": Edits(device_nodes=(DeviceNode("/dev/a", "/b"),))}, "0.5.0"),
    ],
)
def test_the_version_is_the_oldest_that_has_what_is_used(devices: dict[str, Edits], version: str) -> None:
    assert specification(GPU_KIND, devices)["cdiVersion"] == version


@pytest.mark.parametrize("name", ["", "-a", "a-", "a/b", "a b", "a=b"])
def test_a_name_that_no_runtime_takes_is_refused(name: str) -> None:
    with pytest.raises(CdiError, match="cannot be the name"):
        specification(GPU_KIND, {name: GPU})


def test_a_specification_of_nothing_is_refused() -> None:
    with pytest.raises(CdiError, match="needs a device"):
        specification(GPU_KIND, {})


def test_edits_add_up_without_repeating(tmp_path: Path) -> None:
    other = Edits((("A", "1"),), (DeviceNode("/dev/nvidia1"),))
    assert (GPU + other + GPU).device_nodes == (DeviceNode("/dev/nvidia0"), DeviceNode("/dev/nvidia1"))


def test_files_are_written_listed_and_removed(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path / "cdi")
    assert folder.names() == frozenset()
    folder.write(NAME, GPU_KIND, {"GPU-1": GPU})
    assert folder.names() == {NAME}
    assert json.loads((tmp_path / f"cdi/{NAME}.json").read_text()) == specification(GPU_KIND, {"GPU-1": GPU})
    folder.write(NAME, GPU_KIND, {"GPU-2": GPU})
    assert "GPU-2" in (tmp_path / f"cdi/{NAME}.json").read_text()
    folder.remove(NAME)
    folder.remove(NAME)
    assert list((tmp_path / "cdi").iterdir()) == []


def test_an_equal_specification_is_not_written_again(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    folder.write(NAME, GPU_KIND, {"GPU-1": GPU})
    before = (tmp_path / f"{NAME}.json").stat().st_ino
    folder.write(NAME, GPU_KIND, {"GPU-1": GPU})
    assert (tmp_path / f"{NAME}.json").stat().st_ino == before


@pytest.mark.parametrize(
    "content", [b'{"kind": "nvidia.com/gpu"}', b"kind: nvidia.com/gpu", b"[]", b"", b'{"kind": "\xff"}', b"[" * 10_000]
)
def test_a_file_of_another_program_is_neither_overwritten_nor_removed(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"{NAME}.json"
    path.write_bytes(content)
    folder = CdiFolder(tmp_path)
    with pytest.raises(CdiError, match=rf"{path} is not dovetail's"):
        folder.write(NAME, GPU_KIND, {"GPU-1": GPU})
    with pytest.raises(CdiError, match="is not dovetail's"):
        folder.remove(NAME)
    assert path.read_bytes() == content


def test_a_name_outside_of_our_own_is_refused(tmp_path: Path) -> None:
    for name in ("nvidia.com-gpu", "dovetail.dev-/../x"):
        with pytest.raises(CdiError, match=r"must begin with dovetail\.dev-"):
            CdiFolder(tmp_path).write(name, GPU_KIND, {"GPU-1": GPU})


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do() -> None:
    # No process can create files in sysfs, not even as root.
    with pytest.raises(CdiError, match=r"cannot write /sys/dovetail/.*json: .*must be writable"):
        CdiFolder(Path("/sys/dovetail")).write(NAME, GPU_KIND, {"GPU-1": GPU})


def test_half_written_files_are_cleaned_up_and_others_stay(tmp_path: Path) -> None:
    for name in (f"{NAME}.json.new", "nvidia.com-gpu.json.new", f"{NAME}.json"):
        (tmp_path / name).write_text('{"kind": "dovetail.dev/gpu"}')
    CdiFolder(tmp_path).clean()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{NAME}.json", "nvidia.com-gpu.json.new"]


def test_what_another_thread_is_writing_is_not_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced = os.fsync

    def meanwhile(file: int) -> None:
        CdiFolder(tmp_path).clean()
        forced(file)

    monkeypatch.setattr(os, "fsync", meanwhile)
    CdiFolder(tmp_path).write(NAME, GPU_KIND, {"GPU-1": GPU})
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.json"]
