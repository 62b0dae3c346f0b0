# SPDX-License-Identifier: Apache-2.0
"""The handler of RuntimeClass `nvidia` on a real node: it shows a stand-in machine to containers that are to see all
GPUs.

Rules: NVIDIA's runtime puts the driver's library and the device nodes into such a container; this one puts in the
stand-in's library and folder. Where the stand-in's /sys, /dev, /proc and driver are, arguments of `dovetail agent`
name: they are appended to the container's. All other containers of the class are as for runc.
Source: accept-nvidia-visible-devices-as-volume-mounts of NVIDIA's container toolkit.
"""

import json
import sys
from pathlib import Path

from tools.standin import Standin

NAME = "nvidia"
ALL_GPUS = "/var/run/nvidia-container-devices/all"
_PROGRAM = """\
#!{python} -I
import json, os, sys

runtime, folders, environment, arguments = json.loads({settings!r})
if "create" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(path) as file:
        spec = json.load(file)
    if any(mount["destination"] == {all_gpus!r} for mount in spec["mounts"]):
        options = ["rbind", "rprivate", "rw"]
        spec["mounts"] += [{{"destination": f, "type": "bind", "source": f, "options": options}} for f in folders]
        spec["process"]["env"] += environment
        spec["process"]["args"] += arguments
        with open(path, "w") as file:
            json.dump(spec, file)
os.execvp(runtime, [runtime, *sys.argv[1:]])
"""


def write(standin: Standin, target: Path) -> None:
    """Write the handler as a program that ends by executing `runtime`, which is on the node's PATH."""
    library = standin.library.parent
    environment = {
        "LD_LIBRARY_PATH": str(library),
        **{k: v for k, v in standin.environment.items() if k != "LD_LIBRARY_PATH"},
    }
    roots = {"sysfs": standin.sysfs, "proc": standin.proc, "dev": standin.dev, "driver": standin.driver_root}
    arguments = [f"--{name}-root={path}" for name, path in roots.items()]
    # What the manifest names is of a machine whose root is the host's.
    arguments += [f"--{name}-root-on-host={roots[name]}" for name in ("dev", "driver")]
    variables = [f"{name}={value}" for name, value in environment.items()]
    settings = json.dumps(["runtime", [str(standin.folder), str(library)], variables, arguments])
    target.write_text(_PROGRAM.format(python=sys.executable, settings=settings, all_gpus=ALL_GPUS))
    target.chmod(0o755)
