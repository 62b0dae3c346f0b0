# SPDX-License-Identifier: Apache-2.0
"""The programs of a real node, built from two pinned Go modules, and the requirements on the machine.

Rules: the kubelet comes from the module of tools/controlplane, so it has the plane's version. containerd and runc
come from the module next to this file. Each set has a separate directory in the cache, so a change to our three
programs rebuilds only them. Only runc needs a C compiler; a machine without one may have runc on PATH. It is built
without seccomp, so that it needs no headers: seccomp profiles have no effect in the node.
"""

import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from msgspec.structs import replace

from tools.controlplane import binaries
from tools.controlplane.binaries import Module, Report

MODULE_DIR = Path(__file__).parent
_PINS = dict(re.findall(r"\s(github\.com/\S+) (v\S+)", (MODULE_DIR / "go.mod").read_text()))
_CONTAINERD = "github.com/containerd/containerd/v2"
_RUNC = "github.com/opencontainers/runc"
CONTAINERD_VERSION = _PINS[_CONTAINERD]
RUNC_VERSION = _PINS[_RUNC].removeprefix("v")

KUBELET = {"kubelet": "k8s.io/kubernetes/cmd/kubelet"}
CONTAINERD = {name: f"{_CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")}
RUNC = {"runc": _RUNC}
OWN = {name: f"./{name}" for name in ("network", "pod", "runtime")}

_FLAGS = (
    "-mod=readonly",
    "-trimpath",
    # Exclude snapshotters that need C headers, for file systems that the node does not use.
    "-tags=no_btrfs,no_devmapper,no_zfs",
    f"-ldflags=-s -w -X {_CONTAINERD}/version.Version={CONTAINERD_VERSION} -X main.version={RUNC_VERSION}",
)
PURE = Module(
    f"containerd {CONTAINERD_VERSION}",
    f"containerd-{CONTAINERD_VERSION}",
    MODULE_DIR,
    _FLAGS,
    binaries.GO_ENVIRONMENT,
)
WITH_C = replace(
    PURE,
    title=f"runc v{RUNC_VERSION}",
    prefix=f"runc-v{RUNC_VERSION}",
    environment=binaries.GO_ENVIRONMENT | {"CGO_ENABLED": "1"},
)

COMPILER = "gcc"
COMMANDS = ("unshare", "nsenter", "mount")
# The cgroup controllers that the kubelet requires.
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
NUMA_NODES = 2
_SOCK_DIAG = 4
"""NETLINK_SOCK_DIAG, by which the network of the pods knows where they listen."""
_NLMSG_LAST = (2, 3)
"""NLMSG_ERROR and NLMSG_DONE."""


def build(report: Report) -> str:
    """Build what the cache lacks (about 4 minutes beside a built plane), and return the PATH that has all of it.

    Raises binaries.PlaneUnavailable.
    """
    folders = [
        binaries.build(report, KUBELET),
        binaries.build(report, CONTAINERD, PURE),
        binaries.build(report, OWN, PURE),
    ]
    if shutil.which(COMPILER):
        folders.append(binaries.build(report, RUNC, WITH_C))
    return os.pathsep.join([*map(str, folders), *os.get_exec_path(), "/usr/sbin", "/sbin"])


def missing() -> list[str]:
    """The missing requirements of this machine, one sentence each; empty if all checkable ones are met."""
    if sys.platform != "linux":
        return [f"Linux: this is {sys.platform}"]
    if os.geteuid() != 0:
        return ["root: namespaces, mounts and cgroups of a node need it (run the tests with sudo)"]
    return list(_missing_for_root())


def _missing_for_root() -> Iterator[str]:
    absent = [command for command in COMMANDS if not shutil.which(command)]
    if absent:
        yield f"the commands {', '.join(absent)} (package util-linux)"
        return
    # The same calls as those of a node, on a mount that ends with them.
    trial = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "sh",
        "-c",
        "mount -t proc proc /proc && mount -t tmpfs tmpfs /mnt",
    ]
    tried = subprocess.run(trial, capture_output=True, text=True, check=False)
    if tried.returncode:
        yield f"the right to make namespaces and mounts (CAP_SYS_ADMIN): {tried.stderr.strip()}"
    found = {controller for _, controllers in hierarchies() for controller in controllers}
    if lacking := [controller for controller in CONTROLLERS if controller not in found]:
        yield f"the cgroup controllers {', '.join(lacking)}, mounted below /sys/fs/cgroup"
    for folder, _ in hierarchies():
        if not os.access(folder, os.W_OK):
            yield f"write access to {folder}"
    try:
        _ask_for_listeners()
    except OSError as error:
        yield f"sock_diag of the kernel (CONFIG_INET_DIAG; modprobe tcp_diag): {error}"
    if not shutil.which(COMPILER) and not shutil.which("runc"):
        yield f"a C compiler ({COMPILER}) to build runc with, or runc on PATH"
    if len(os.sched_getaffinity(0)) < NUMA_NODES:
        yield f"{NUMA_NODES} CPUs, one for each NUMA node"
    if not address():
        yield "a network interface with an address that is not loopback: a kubelet refuses a node without one"


def _ask_for_listeners(protocol: int = socket.IPPROTO_TCP) -> None:
    """Ask the kernel as the network of the pods does. (A socket for that is there also where no module answers.)

    Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asking:
        asking.settimeout(5)
        # struct nlmsghdr: SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP; struct inet_diag_req_v2: TCP_LISTEN.
        asking.send(struct.pack("=IHHIIBBBxI48x", 72, 20, 0x301, 0, 0, socket.AF_INET, protocol, 0, 1 << 10))
        answer = asking.recv(1 << 13)
        # Where nothing knows the protocol, that is reported at the end of the list.
        kind, status = struct.unpack_from("=H", answer, 4)[0], struct.unpack_from("=i", answer, 16)[0]
        if kind in _NLMSG_LAST and status < 0:
            raise OSError(-status, os.strerror(-status))


def hierarchies() -> list[tuple[Path, tuple[str, ...]]]:
    """The cgroup directories in which this process can create cgroups, with their controllers: several in version 1,
    one in version 2."""
    result = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        kind, _, options = kind.split(" ", 2)
        folder = Path(mount.split(" ")[4])
        if not folder.is_relative_to("/sys/fs/cgroup"):
            continue
        if kind == "cgroup":
            result.append((folder, tuple(options.split(","))))
        elif kind == "cgroup2":
            controllers = folder / "cgroup.controllers"
            result.append((folder, tuple(controllers.read_text().split()) if controllers.exists() else ()))
    return result


def snapshotter(folder: Path) -> str:
    """containerd's snapshotter for files in this folder: overlayfs, as on most nodes, or native where the folder's file
    system cannot be a layer of it, as in some containers. native copies the whole image for each container, and
    containerd goes through all copies every ten seconds."""
    trial = Path(tempfile.mkdtemp(prefix="overlay-", dir=folder))
    lower, upper, work, merged = (trial / name for name in ("lower", "upper", "work", "merged"))
    for one in (lower, upper, work, merged):
        one.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    # The mount ends with its namespace.
    mount = ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", options, str(merged)]
    tried = subprocess.run(mount, capture_output=True, check=False)
    shutil.rmtree(trial)
    return "native" if tried.returncode else "overlayfs"


def address() -> str:
    """The address of this machine toward others, by which a node is reached; "" if it has only loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # This only reads the routing table: connecting a datagram socket sends nothing (address from RFC 5737).
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return ""
        own = str(probe.getsockname()[0])
        return "" if ip_address(own).is_loopback else own
