# SPDX-License-Identifier: Apache-2.0
"""A Chromium for the tests of the web pages: the one on PATH, else Debian's package, unpacked into the cache.

It is Chromium's headless shell where there is one: it renders the same, and without windows to draw the process of the
browser takes half the time.

Rules: nothing is installed and no root is needed; apt downloads the package and what this machine lacks for it, and
dpkg unpacks them into one folder. An unpacked one has its libraries and fonts there, so it is started by a script
beside it. Other systems than Debian need a Chromium on PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from tools.controlplane.binaries import PlaneUnavailable, Report

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core", "fonts-noto-color-emoji")
_TIMEOUT_S = 900
_START = """\
#!/bin/sh
# Starts the unpacked Chromium with the libraries and fonts that were unpacked with it.
root={root}
lib="$root/usr/lib/{arch}"
export LD_LIBRARY_PATH="$lib:$lib/pulseaudio:$root/lib/{arch}:$root/usr/lib/chromium"
export FONTCONFIG_FILE="$root/fonts.conf" XDG_DATA_DIRS="$root/usr/share"
exec "$root/usr/lib/chromium/chromium-headless-shell" "$@"
"""
_FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{root}/usr/share/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{root}/font-cache</cachedir></fontconfig>
"""


def cache_dir() -> Path:
    """Where it is unpacked."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail" / "chromium-headless-shell"


def build(report: Report) -> Path:
    """The program, unpacked if it is not there (a minute, about 95 MiB to download). Raises PlaneUnavailable."""
    for name in NAMES:
        if found := shutil.which(name):
            return Path(found)
    root = cache_dir()
    program = root / "chromium"
    if program.exists():
        return program
    for needed in ("apt-get", "dpkg"):
        if shutil.which(needed) is None:
            raise PlaneUnavailable(f"there is no Chromium on PATH, and no {needed} to get Debian's: install Chromium")
    report("unpacking Debian's Chromium into the cache ...")
    making = root.with_name(f"{root.name}.{os.getpid()}")
    try:
        _unpack(making)
        arch = sysconfig.get_config_var("MULTIARCH") or ""
        (making / "fonts.conf").write_text(_FONTS.format(root=root))
        start = making / "chromium"
        start.write_text(_START.format(root=root, arch=arch))
        start.chmod(0o755)
        shutil.rmtree(root, ignore_errors=True)
        making.rename(root)
    except OSError as error:
        raise PlaneUnavailable(f"Chromium cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return program


def lacking(report: Report = print) -> list[str]:
    """Why there is none here and none can be had, or []. Not every machine reaches Debian's packages."""
    try:
        build(report)
    except PlaneUnavailable as error:
        return [str(error)]
    return []


def _unpack(root: Path) -> None:
    archives = root / "archives"
    (archives / "partial").mkdir(parents=True)
    apt = ("-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=")
    _run("apt-get", "install", "-qq", "--yes", "--no-install-recommends", "--download-only", *apt, *_PACKAGES)
    for archive in sorted(archives.glob("*.deb")):
        _run("dpkg", "-x", str(archive), str(root))
        archive.unlink()


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise PlaneUnavailable(f"{command[0]} did not end within {_TIMEOUT_S} s") from error
    if done.returncode:
        raise PlaneUnavailable(f"{' '.join(command[:2])} failed: {done.stderr.strip()[-300:]}")
    return done.stdout
