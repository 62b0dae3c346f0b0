# SPDX-License-Identifier: Apache-2.0
"""Drivers as distributions install them, file by file: libraries with the sonames that NVIDIA gives them, programs,
firmware, sockets, and the configuration of graphics and OpenCL.

Names and sonames are those of the driver's own manifest (release 570).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

SONAMES = {
    "libcuda.so": "1", "libcudadebugger.so": "1", "libnvidia-ptxjitcompiler.so": "1",
    "libnvidia-nvvm.so": "4",
    "libnvidia-opencl.so": "1", "libnvidia-cfg.so": "1", "libnvidia-allocator.so": "1", "libnvidia-gpucomp.so": "",
    "libnvidia-pkcs11-openssl3.so": "", "libnvidia-encode.so": "1", "libnvcuvid.so": "1",
    "libnvidia-opticalflow.so": "1",
    "libnvidia-fbc.so": "1", "libnvidia-ngx.so": "1", "libnvoptix.so": "1", "libnvidia-rtcore.so": "",
    "libnvidia-glcore.so": "", "libnvidia-eglcore.so": "", "libnvidia-glsi.so": "", "libnvidia-tls.so": "",
    "libGLX_nvidia.so": "0", "libEGL_nvidia.so": "0", "libGLESv1_CM_nvidia.so": "1", "libGLESv2_nvidia.so": "2",
    "libnvidia-vulkan-producer.so": "", "vdpau/libvdpau_nvidia.so": "1",
}  # fmt: skip
"""By the name without a version; "" where the soname has the driver's version."""
DEVELOPMENT = ("libcuda.so", "libnvcuvid.so", "libnvidia-encode.so", "libnvidia-opticalflow.so", "libnvidia-ml.so")
EGL = {"libnvidia-egl-gbm.so": "1.1.2", "libnvidia-egl-wayland.so": "1.1.19", "libnvidia-egl-xcb.so": "1.0.1",
       "libnvidia-egl-xlib.so": "1.0.1"}  # fmt: skip
PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control",
            "nvidia-cuda-mps-server", "nvidia-imex", "nvidia-imex-ctl", "nvidia-xconfig",
            "nvidia-cdi-hook")  # fmt: skip
_COMPUTE = ("libcuda.so", "libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so", "libnvidia-opencl.so", "libnvidia-cfg.so")


class Installation(Struct, frozen=True):
    """`libraries` and `xorg` are folders; `configs` are files that point loaders to the driver; `compute` has neither
    graphics nor what is left over from older releases."""

    libraries: str
    xorg: str = ""
    configs: tuple[str, ...] = ()
    compute: bool = False
    others: tuple[str, ...] = ()


_EGL_CONFIGS = (
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
    "usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json",
    "usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json",
    "usr/share/nvidia/nvoptix.bin",
)
INSTALLATIONS = {
    "runfile": Installation(
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/xorg/modules",
        (*_EGL_CONFIGS, "etc/OpenCL/vendors/nvidia.icd", "etc/vulkan/icd.d/nvidia_icd.json",
         "etc/vulkan/implicit_layer.d/nvidia_layers.json", "usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf"),
        others=("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket", 
                "lib/firmware/nvidia/VERSION/gsp_ga10x.bin", "lib/firmware/nvidia/VERSION/gsp_tu10x.bin",
                "lib/firmware/nvidia/VERSION/ucodes_gb10x.bin", "usr/lib/x86_64-linux-gnu/libcuda.so.470.1.1"),
    ),
    "rpm": Installation(
        "usr/lib64",
        "usr/lib64/xorg/modules",
        (*_EGL_CONFIGS, "etc/OpenCL/vendors/nvidia.icd", "usr/share/vulkan/icd.d/nvidia_icd.x86_64.json",
         "usr/share/vulkan/implicit_layer.d/nvidia_layers.json", "etc/X11/xorg.conf.d/10-nvidia.conf"),
        others=("var/run/nvidia-persistenced/socket", "lib/firmware/updates/nvidia/VERSION/gsp_ga10x.bin",
                "usr/lib64/libnvidia-nvvm70.so.4"),
    ),
    "debian": Installation(
        "usr/lib/x86_64-linux-gnu/nvidia/current",
        "usr/lib/x86_64-linux-gnu/nvidia/current/nvidia/xorg",
        (*_EGL_CONFIGS, "etc/OpenCL/vendors/nvidia.icd", "usr/share/vulkan/icd.d/nvidia_icd.json"),
        others=("run/nvidia-persistenced/socket",),
    ),
    "vulkan in the root": Installation("usr/lib64", configs=("vulkan/icd.d/nvidia_icd.json",)),
    "compute": Installation("usr/lib/x86_64-linux-gnu", compute=True),
}  # fmt: skip


class Shelf:
    """Libraries that have nothing but a soname, made once each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, soname: str, path: Path) -> None:
        made = self._folder / soname
        if not made.exists():
            flags = ["-shared", "-nostdlib", "-x", "c", "/dev/null", f"-Wl,-soname,{soname}"]
            subprocess.run(["cc", *flags, "-o", str(made)], check=True, capture_output=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made, path)


def install(root: Path, what: Installation, version: str, shelf: Shelf, nvml: Path) -> None:
    """Lay the driver out below `root`; `nvml` becomes its management library."""
    libraries = root / what.libraries
    for stem, name, soname in _named(what, version):
        shelf.put(soname, libraries / name)
        link = (libraries / name).parent / soname
        if not link.exists():
            link.symlink_to(Path(name).name)
        if stem in DEVELOPMENT:
            (libraries / stem).symlink_to(soname)
    shutil.copy(nvml, libraries / f"libnvidia-ml.so.{version}")
    (libraries / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{version}")
    if what.xorg:
        own = what.xorg.endswith("nvidia/xorg")
        drivers, extensions = ("", "") if own else ("drivers/", "extensions/")
        shelf.put("nvidia_drv.so", root / what.xorg / f"{drivers}nvidia_drv.so")
        shelf.put("libglxserver_nvidia.so", root / what.xorg / f"{extensions}libglxserver_nvidia.so.{version}")
    for name in PROGRAMS:
        _write(root / "usr/bin" / name).chmod(0o755)
    for name in (*what.configs, *what.others):
        _write(root / name.replace("VERSION", version))


def _named(what: Installation, version: str) -> Iterator[tuple[str, str, str]]:
    """Stem, file name and soname of each library."""
    for stem, number in SONAMES.items():
        if not what.compute or stem in _COMPUTE:
            yield stem, f"{stem}.{version}", f"{Path(stem).name}.{number or version}"
    for stem, own in EGL.items() if not what.compute else ():
        yield stem, f"{stem}.{own}", f"{stem}.{own.partition('.')[0]}"


def _write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("stand-in\n")
    return path
