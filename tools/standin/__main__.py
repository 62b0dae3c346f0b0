# SPDX-License-Identifier: Apache-2.0
"""Command line of the stand-in: `python -m tools.standin HOST [--folder F]` creates a machine and prints the
environment variables for a shell, as in `eval "$(python -m tools.standin dgx-a100)"`."""

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from tools.standin import HOSTS, HostError, Standin, StandinUnavailable


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.standin", description="A machine with GPUs that is none")
    parser.add_argument("host", metavar="HOST", help=", ".join(HOSTS))
    parser.add_argument("--folder", type=Path, help="where it is laid out, or was before (a new temporary one)")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="dovetail-standin-"))
    try:
        standin = Standin(folder, arguments.host)
    except (HostError, StandinUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, value in standin.environment.items():
        print(f"export {name}={shlex.quote(value)}")
    roots = ("sysfs", "dev", "proc", "driver_root")
    print(*(f"# {root}: {shlex.quote(str(getattr(standin, root)))}" for root in roots), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
