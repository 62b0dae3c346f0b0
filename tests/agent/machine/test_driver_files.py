# SPDX-License-Identifier: Apache-2.0
"""The driver files of a container, found below a root with an installed driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dovetail.agent.cdi import DeviceNode
from dovetail.agent.machine.driver_files import DriverFiles, DriverFilesError
from dovetail.agent.machine.host import GpuInstance, Host
from tests.agent.dra.device_node import driver_tree, gpu, host

HOST = host(gpu(0), gpu(1))
LIBRARIES = "usr/lib/x86_64-linux-gnu"
INSTANCE = GpuInstance("MIG-1", "1g.5gb", 7, 0, 0, 1, 4864)


def with_hook(root: Path, name: str = "nvidia-cdi-hook") -> DriverFiles:
    files = driver_tree(root)
    (root / "usr/bin" / name).touch()
    return files


def test_every_container_has_the_control_nodes_and_the_older_hook_adds_none(tmp_path: Path) -> None:
    common = driver_tree(tmp_path).common(HOST)
    assert [node.path for node in common.device_nodes] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert common.env == (("NVIDIA_VISIBLE_DEVICES", "void"),)


def test_libraries_of_the_running_version_and_programs_keep_their_paths(tmp_path: Path) -> None:
    files = with_hook(tmp_path)
    (tmp_path / LIBRARIES / "libcuda.so.470.1.1").touch()
    (tmp_path / "lib/firmware/nvidia/535.129.03").mkdir(parents=True)
    (tmp_path / "lib/firmware/nvidia/535.129.03/gsp_tu10x.bin").touch()
    (tmp_path / "run/nvidia-persistenced").mkdir(parents=True)
    (tmp_path / "run/nvidia-persistenced/socket").touch()
    mounts = {mount.container_path: mount for mount in files.common(HOST).mounts}
    assert list(mounts) == [
        f"/{LIBRARIES}/libcuda.so.535.129.03",
        f"/{LIBRARIES}/libnvidia-glcore.so.535.129.03",
        f"/{LIBRARIES}/libnvidia-ml.so.535.129.03",
        "/usr/bin/nvidia-smi",
        "/lib/firmware/nvidia/535.129.03/gsp_tu10x.bin",
        "/run/nvidia-persistenced/socket",
    ]
    assert mounts["/usr/bin/nvidia-smi"].host_path == str(tmp_path / "usr/bin/nvidia-smi")
    assert "noexec" in mounts["/run/nvidia-persistenced/socket"].options


def test_a_folder_that_links_to_another_is_mounted_once(tmp_path: Path) -> None:
    files = with_hook(tmp_path)
    (tmp_path / "usr/lib64").symlink_to(tmp_path / LIBRARIES)
    paths = [mount.container_path for mount in files.common(HOST).mounts]
    assert len([path for path in paths if "libcuda" in path]) == 1


@pytest.mark.parametrize(
    "name, start", [("nvidia-cdi-hook", ["nvidia-cdi-hook"]), ("nvidia-ctk", ["nvidia-ctk", "hook"])]
)
def test_nvidias_hook_makes_the_links_and_the_loaders_cache(name: str, start: list[str], tmp_path: Path) -> None:
    files = with_hook(tmp_path, name)
    links, compat, cache, nodes = files.common(HOST).hooks
    assert links.path == str(tmp_path / "usr/bin" / name)
    assert list(links.args) == [
        *(*start, "create-symlinks", "--link", f"libcuda.so.1::/{LIBRARIES}/libcuda.so"),
        *("--link", f"libcuda.so.535.129.03::/{LIBRARIES}/libcuda.so.1"),
        *("--link", f"libnvidia-ml.so.535.129.03::/{LIBRARIES}/libnvidia-ml.so.1"),
    ]
    assert list(compat.args) == [*start, "enable-cuda-compat", "--host-driver-version=535.129.03"]
    assert list(nodes.args) == [*start, "disable-device-node-modification"]
    assert list(cache.args) == [*start, "update-ldcache", "--folder", f"/{LIBRARIES}"]
    assert not any("hook" in message for message in files.missing(HOST))


def test_without_the_hook_libraries_have_their_link_names_in_the_loader_s_directories(tmp_path: Path) -> None:
    files = driver_tree(tmp_path)
    common = files.common(HOST)
    assert common.hooks == ()
    paths = {mount.container_path: mount.host_path for mount in common.mounts}
    assert paths["/usr/lib64/libcuda.so.1"] == str(tmp_path / LIBRARIES / "libcuda.so.535.129.03")
    assert "/usr/lib64/libnvidia-glcore.so.535.129.03" in paths
    assert any(path.endswith("-linux-gnu/libnvidia-ml.so.1") for path in paths)
    assert any("neither nvidia-cdi-hook nor nvidia-ctk" in message for message in files.missing(HOST))
    assert all(name != "LD_LIBRARY_PATH" for name, _ in common.env)


@pytest.mark.parametrize("hook", [True, False])
def test_files_for_graphics_and_opencl_are_mounted_where_loaders_search(hook: bool, tmp_path: Path) -> None:
    files = with_hook(tmp_path) if hook else driver_tree(tmp_path)
    for name in (
        f"{LIBRARIES}/libnvidia-allocator.so.535.129.03",
        f"{LIBRARIES}/libnvidia-egl-gbm.so.1.1.0",
        "etc/OpenCL/vendors/nvidia.icd",
        "usr/share/vulkan/icd.d/nvidia_icd.json",
        "usr/local/share/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / LIBRARIES / "libnvidia-allocator.so.1").symlink_to("libnvidia-allocator.so.535.129.03")
    common = files.common(HOST)
    mounts = {mount.container_path: mount.host_path for mount in common.mounts}
    assert mounts[f"/{LIBRARIES}/libnvidia-egl-gbm.so.1.1.0"] == str(
        tmp_path / LIBRARIES / "libnvidia-egl-gbm.so.1.1.0"
    )
    assert mounts["/etc/OpenCL/vendors/nvidia.icd"] == str(tmp_path / "etc/OpenCL/vendors/nvidia.icd")
    assert mounts["/etc/vulkan/icd.d/nvidia_icd.json"] == str(tmp_path / "usr/share/vulkan/icd.d/nvidia_icd.json")
    egl = "glvnd/egl_vendor.d/10_nvidia.json"
    assert mounts[f"/usr/share/{egl}"] == str(tmp_path / "usr/local/share" / egl)
    if hook:
        assert f"../libnvidia-allocator.so.1::/{LIBRARIES}/gbm/nvidia-drm_gbm.so" in common.hooks[0].args
    else:
        assert mounts["/usr/lib64/gbm/nvidia-drm_gbm.so"].endswith("libnvidia-allocator.so.535.129.03")
        assert mounts["/usr/lib64/libcuda.so"].endswith("libcuda.so.535.129.03")


def test_a_whole_gpu_has_its_drm_nodes_and_a_mig_instance_has_not(tmp_path: Path) -> None:
    files = with_hook(tmp_path)
    files = DriverFiles(tmp_path, tmp_path / "dev", tmp_path / "proc", tmp_path / "sys")
    bus = HOST.gpus[1].pci_bus_id
    for name, other in (("card1", "pci-0000:99:00.0-card"), ("renderD129", f"pci-{bus}-render")):
        (tmp_path / "sys/bus/pci/devices" / bus / "drm" / name).mkdir(parents=True)
        (tmp_path / "dev/dri/by-path").mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev/dri" / name).touch()
        (tmp_path / "dev/dri/by-path" / other).symlink_to(f"../{name}")
    edits = files.gpu(HOST.gpus[1])
    assert [node.path for node in edits.device_nodes] == ["/dev/nvidia1", "/dev/dri/card1", "/dev/dri/renderD129"]
    (hook,) = edits.hooks
    assert hook.args[1:] == ("create-symlinks", "--link", f"../renderD129::/dev/dri/by-path/pci-{bus}-render")
    assert [node.path for node in files.gpu(HOST.gpus[0]).device_nodes] == ["/dev/nvidia0"]
    assert all("dri" not in node.path for node in files.instance(HOST.gpus[1], INSTANCE).device_nodes)


def test_paths_on_the_host_may_differ_from_those_of_the_agent(tmp_path: Path) -> None:
    with_hook(tmp_path)
    files = DriverFiles(
        tmp_path, tmp_path / "dev", driver_root_on_host=Path("/run/nvidia/driver"), dev_root_on_host=Path("/dev")
    )
    common = files.common(HOST)
    assert common.mounts[0].host_path == f"/run/nvidia/driver/{LIBRARIES}/libcuda.so.535.129.03"
    assert common.mounts[0].container_path == f"/{LIBRARIES}/libcuda.so.535.129.03"
    assert common.hooks[0].path == "/run/nvidia/driver/usr/bin/nvidia-cdi-hook"
    assert files.gpu(HOST.gpus[1]).device_nodes == (DeviceNode("/dev/nvidia1"),)


def test_a_character_device_has_its_numbers(tmp_path: Path) -> None:
    files = driver_tree(tmp_path)
    (tmp_path / "dev/nvidia0").unlink()
    (tmp_path / "dev/nvidia0").symlink_to("/dev/null")
    (node,) = files.gpu(HOST.gpus[0]).device_nodes
    assert (node.major, node.minor) == (1, 3)


def test_the_error_for_a_gpu_without_a_node_names_the_remedy(tmp_path: Path) -> None:
    files = driver_tree(tmp_path, gpus=1)
    assert files.gpu(HOST.gpus[0]).device_nodes == (DeviceNode("/dev/nvidia0", str(tmp_path / "dev/nvidia0")),)
    with pytest.raises(DriverFilesError, match=r"dev/nvidia1.* does not exist: run `nvidia-modprobe -c 1`"):
        files.gpu(HOST.gpus[1])


def test_a_mig_instance_has_two_capability_nodes(tmp_path: Path) -> None:
    files = driver_tree(tmp_path)
    found = files.instance(HOST.gpus[1], INSTANCE).device_nodes
    assert found[0].path == "/dev/nvidia1"
    # The runtime creates them by number if the host has none.
    assert found[1:] == (
        DeviceNode("/dev/nvidia-caps/nvidia-cap114", "", 236, 114),
        DeviceNode("/dev/nvidia-caps/nvidia-cap115", "", 236, 115),
    )


def test_the_driver_s_capability_file_takes_precedence_over_the_table(tmp_path: Path) -> None:
    files = driver_tree(tmp_path)
    for path, minor in (("gi7", 5), ("gi7/ci0", 6)):
        access = tmp_path / f"proc/driver/nvidia/capabilities/gpu1/mig/{path}/access"
        access.parent.mkdir(parents=True)
        access.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    (tmp_path / "dev/nvidia-caps").mkdir()
    (tmp_path / "dev/nvidia-caps/nvidia-cap5").touch()
    found = files.instance(HOST.gpus[1], INSTANCE).device_nodes
    assert found[1] == DeviceNode("/dev/nvidia-caps/nvidia-cap5", str(tmp_path / "dev/nvidia-caps/nvidia-cap5"))
    assert found[2].minor == 6


def test_an_instance_without_capabilities_is_an_error(tmp_path: Path) -> None:
    files = driver_tree(tmp_path)
    with pytest.raises(DriverFilesError, match=r"gpu1/gi99"):
        files.instance(HOST.gpus[1], replace(INSTANCE, gi=99))
    (tmp_path / "proc/devices").write_text("Character devices:\n195 nvidia\n")
    with pytest.raises(DriverFilesError, match="does not list nvidia-caps"):
        files.instance(HOST.gpus[1], INSTANCE)


def test_missing_files_are_reported(tmp_path: Path) -> None:
    messages = DriverFiles(tmp_path, tmp_path / "dev", tmp_path).missing(Host())
    assert any("nvidiactl" in each for each in messages)
    assert any("nvidia-uvm" in each for each in messages)
    assert any("(unknown version)" in each for each in messages)
    common = DriverFiles(tmp_path, tmp_path / "dev", tmp_path).common(Host())
    assert common.device_nodes == common.mounts == common.hooks == ()


def test_an_imex_channel_is_added_if_it_exists(tmp_path: Path) -> None:
    files = driver_tree(tmp_path)
    path = "/dev/nvidia-caps-imex-channels/channel0"
    assert files.common(HOST, (0,)) == files.common(HOST)
    assert path.removeprefix("/dev/") in files.lacks_channel((0,)) and files.lacks_channel(()) == ""
    (tmp_path / "dev/nvidia-caps-imex-channels").mkdir()
    (tmp_path / path.removeprefix("/")).touch()
    assert files.common(HOST, (0,)).device_nodes[-1].path == path
    assert files.lacks_channel((0,)) == ""


@pytest.mark.parametrize("hook", [True, False])
def test_each_look_finds_what_has_come_and_gone_since_the_last(hook: bool, tmp_path: Path) -> None:
    files = with_hook(tmp_path) if hook else driver_tree(tmp_path)
    folder = tmp_path / LIBRARIES
    before = files.common(HOST)
    (folder / "libnvcuvid.so.535.129.03").touch()
    (folder / "libnvcuvid.so.1").symlink_to("libnvcuvid.so.535.129.03")
    (tmp_path / "usr/bin/nvidia-imex").touch()
    paths = {mount.container_path for mount in files.common(HOST).mounts}
    own = f"/{LIBRARIES}/libnvcuvid.so.535.129.03" if hook else "/usr/lib64/libnvcuvid.so.1"
    assert {own, "/usr/bin/nvidia-imex"} <= paths
    linked = any("libnvcuvid.so.1" in arg for one in files.common(HOST).hooks for arg in one.args)
    assert linked == hook
    for name in ("libnvcuvid.so.535.129.03", "libnvcuvid.so.1"):
        (folder / name).unlink()
    (tmp_path / "usr/bin/nvidia-imex").unlink()
    assert files.common(HOST) == before
    for name in ("libcuda.so.535.129.03", "libnvidia-ml.so.535.129.03"):
        (folder / name).rename(folder / name.replace("535.129.03", "570.1"))
    assert any("no libraries" in message for message in files.missing(HOST))
    assert not any("no libraries" in message for message in files.missing(replace(HOST, driver="570.1")))
