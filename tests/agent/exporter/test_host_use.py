# SPDX-License-Identifier: Apache-2.0
"""What pods use of the CPUs and the memory of the node, from folders as the kubelet and the kernel make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.agent.exporter.host_use import HostUse, HostUsed

UID = "3f2a51b0-1c2d-4e5f-8a9b-0c1d2e3f4a5b"
SYSTEMD = UID.replace("-", "_")
MIB = 1 << 20


def write(folder: Path, cpu_us: int, current_mib: int = 500, inactive_mib: int = 100) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.stat").write_text(f"usage_usec {cpu_us}\nuser_usec 1\nsystem_usec 1\n")
    (folder / "memory.current").write_text(f"{current_mib * MIB}\n")
    stat = f"anon 1\nactive_file 7\ninactive_file {inactive_mib * MIB}\n"
    (folder / "memory.stat").write_text(stat)


@pytest.mark.parametrize(
    "path",
    [
        f"kubepods.slice/kubepods-pod{SYSTEMD}.slice",
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice",
        f"kubepods/besteffort/pod{UID}",
        f"kubepods/pod{UID}",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{SYSTEMD}.slice",
    ],
)
def test_a_pod_is_found_as_the_kubelet_names_its_cgroup(tmp_path: Path, path: str) -> None:
    write(tmp_path / path, 1_000_000)
    (tmp_path / "system.slice").mkdir()
    use = HostUse(tmp_path)
    assert use.of(UID, 0.0) is None
    write(tmp_path / path, 31_000_000)
    assert use.of(UID, 15.0) == HostUsed(2000.0, 400.0)


def test_a_rate_is_that_of_the_time_between_two_readings(tmp_path: Path) -> None:
    folder = tmp_path / "kubepods" / f"pod{UID}"
    write(folder, 0)
    use = HostUse(tmp_path)
    use.of(UID, 0.0)
    write(folder, 10_000_000)
    first = use.of(UID, 10.0)
    write(folder, 99_000_000)
    assert use.of(UID, 12.0) == first == HostUsed(1000.0, 400.0)
    assert use.of(UID, 20.0) == HostUsed(8900.0, 400.0)


def test_what_is_not_known(tmp_path: Path) -> None:
    use = HostUse(tmp_path)
    assert use.of(UID, 0.0) is None and use.of("../*", 0.0) is None and use.of("", 0.0) is None
    folder = tmp_path / "kubepods" / f"pod{UID}"
    write(folder, 50_000_000)
    use.of(UID, 10.0)
    # A cgroup that was made again counts from 0.
    write(folder, 1_000_000)
    assert use.of(UID, 20.0) is None
    write(folder, 11_000_000, current_mib=50)
    assert use.of(UID, 30.0) == HostUsed(1000.0, 0.0)
    for name, text in (("cpu.stat", "usage_usec x\n"), ("memory.current", "max\n"), ("memory.stat", "anon 1\n")):
        write(folder, 21_000_000)
        (folder / name).write_text(text)
        assert use.of(UID, 40.0) is None
    write(folder, 21_000_000)
    assert use.of(UID, 50.0) is None
    (folder / "memory.current").unlink()
    assert use.of(UID, 60.0) is None
