# SPDX-License-Identifier: Apache-2.0
"""What containerd executes in place of runc on a real node whose GPUs are a stand-in's, so that containers see that
machine as they would see one with a driver.

Rules
- Every container has the PCI devices of the stand-in in its /sys: sysfs shows a machine's bus to all of them.
- A container with the device node of the driver (`/dev/nvidiactl`) reaches the state of the stand-in, as it would reach
  the kernel module by that node. It sees the GPUs whose device nodes it has. The library comes to it with the driver's
  files, by CDI.
- NVIDIA's runtime, the handler of RuntimeClass `nvidia`, puts the driver's library and all device nodes into a
  container that asks for all GPUs by a mount; this one puts in the stand-in's library and folder. Where the stand-in's
  /sys, /dev, /proc and driver are, arguments of `dovetail agent` name: they are appended to the container's.
Source: accept-nvidia-visible-devices-as-volume-mounts of NVIDIA's container toolkit.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from tools.node.gpus import real_devices, real_library
from tools.standin import Standin
from tools.standin.standin import DEVICE_NODES, VARIABLE

NAME = "nvidia"
ALL_GPUS = "/var/run/nvidia-container-devices/all"
_STATE = "/run/dovetail-standin"
_PROGRAM = """\
import json, os, sys

settings = json.loads({settings!r})
path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
with open(path) as file:
    spec = json.load(file)

def bind(source, target, access):
    spec["mounts"].append(dict(destination=target, type="bind", source=source, options=["rbind", "rprivate", access]))

mounts = [one["destination"] for one in spec["mounts"]]
if "/sys" in mounts:
    for target, source in settings["sysfs"].items():
        bind(source, target, "ro")
if any(one["path"] == "/dev/nvidiactl" for one in spec["linux"].get("devices", ())):
    bind(settings["state"], {state!r}, "rw")
    spec["process"]["env"] += settings["container_environment"]
if settings["gives_all"] and {all_gpus!r} in mounts:
    for folder in settings["folders"]:
        bind(folder, folder, "rw")
    spec["process"]["env"] += settings["environment"]
    spec["process"]["args"] += settings["arguments"]
with open(path, "w") as file:
    json.dump(spec, file)
os.execvp("runtime", ["runtime", *sys.argv[1:]])
"""
# Of the calls for one container only `create` has a specification to change.
_WRAPPER = """\
#!/bin/sh
for argument; do
    if [ "$argument" = create ]; then exec {python} -I {program} "$@"; fi
done
exec runtime "$@"
"""


def write(standin: Standin, folder: Path) -> dict[str, Path]:
    """Make the stand-in's driver one that containers can have, and write the programs into `folder`. They end by
    executing `runtime`, which is on the node's PATH. Returns them by name of the handler, for `Node`."""
    real_devices(standin.dev)
    real_library(standin)
    # Containers have other users.
    standin.state_file.chmod(0o666)
    folder.mkdir()
    return {
        NAME: _write(folder / NAME, _settings(standin, gives_all=True)),
        "runc": _write(folder / "runc", _settings(standin, gives_all=False)),
    }


def _settings(standin: Standin, *, gives_all: bool) -> dict[str, Any]:
    library = standin.library.parent
    environment = {**standin.environment, "LD_LIBRARY_PATH": str(library)}
    roots = {"sysfs": standin.sysfs, "proc": standin.proc, "dev": standin.dev, "driver": standin.driver_root}
    arguments = [f"--{name}-root={path}" for name, path in roots.items()]
    # What the manifest names is of a machine whose root is the host's.
    arguments += [f"--{name}-root-on-host={roots[name]}" for name in ("dev", "driver")]
    return {
        "sysfs": {f"/sys/{name}": str(standin.sysfs / name) for name in ("devices", "bus/pci/devices")},
        "state": str(standin.state_file),
        "container_environment": [f"{VARIABLE}={_STATE}", f"{DEVICE_NODES}=/dev"],
        "gives_all": gives_all,
        "folders": [str(standin.folder), str(library)],
        "environment": [f"{name}={value}" for name, value in environment.items()],
        "arguments": arguments,
    }


def _write(target: Path, settings: dict[str, Any]) -> Path:
    program = target.with_suffix(".py")
    program.write_text(_PROGRAM.format(settings=json.dumps(settings), state=_STATE, all_gpus=ALL_GPUS))
    target.write_text(_WRAPPER.format(python=shlex.quote(sys.executable), program=shlex.quote(str(program))))
    target.chmod(0o755)
    return target
