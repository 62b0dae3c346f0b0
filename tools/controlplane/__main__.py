# SPDX-License-Identifier: Apache-2.0
"""Command line of the development control plane: `python -m tools.controlplane up|down|status|env|build|referee`.

Rules: `up` holds the lock on the state file during the lifetime of its plane, so an unlocked state file is stale and
ignored. Each user can have one plane up at a time. `up --detach` runs the same process without output.
"""

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from tools.controlplane import binaries, referee
from tools.controlplane.plane import ComponentFailed, Plane, print_progress

READY_LINE = "export KUBECONFIG="


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.controlplane", description="A real Kubernetes control plane")
    commands = parser.add_subparsers(dest="command", required=True)
    # No abbreviations: `detach` removes its own flag from the arguments by the full name.
    up_parser = commands.add_parser("up", help="start a plane and keep it until Ctrl-C", allow_abbrev=False)
    up_parser.add_argument("--detach", action="store_true", help="return when the plane is ready; end it with `down`")
    up_parser.add_argument("--controllers", action=argparse.BooleanOptionalAction, default=True)
    up_parser.add_argument("--scheduler", action="store_true", help="also start the stock kube-scheduler")
    up_parser.add_argument(
        "--features", action=argparse.BooleanOptionalAction, default=True, help="serve the workload API (PodGroup)"
    )
    commands.add_parser("down", help="stop the plane that is up")
    commands.add_parser("status", help="print what runs; exit status 1 if nothing does")
    commands.add_parser("env", help='print shell settings for the plane that is up: eval "$(... env)"')
    commands.add_parser("build", help="build the binaries if the cache lacks them, and print where they are")
    commands.add_parser("referee", help="answer cases, one JSON object a line, with Kubernetes' own packages")
    arguments = parser.parse_args()
    try:
        match arguments.command:
            case "up":
                return detach() if arguments.detach else up(arguments)
            case "down":
                return down()
            case "status":
                return status()
            case "env":
                return env()
            case "referee":
                return subprocess.run([referee.build(print_progress)], check=False).returncode
            case _:
                print(f"the binaries of the control plane are in {binaries.build(print_progress)}")
                print(f"the program of the referee is in {referee.build(print_progress).parent}")
                return 0
    except (binaries.PlaneUnavailable, ComponentFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def up(arguments: argparse.Namespace) -> int:
    """Run a plane in the foreground until SIGINT or SIGTERM."""
    state = _open_state()
    if not _locked(state):
        print("error: a plane is already up; `status` shows it, `down` stops it", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    plane = Plane(features=arguments.features, controllers=arguments.controllers, scheduler=arguments.scheduler)
    try:
        with plane:
            facts = {"url": plane.url, "kubeconfig": str(plane.kubeconfig), "bin_dir": str(plane.bin_dir)}
            state.truncate(0)
            json.dump(facts | {"pid": os.getpid(), "pids": plane.pids}, state)
            state.flush()
            print(f"Kubernetes {binaries.KUBERNETES_VERSION} at {plane.url}, logs in {plane.work_dir}")
            print(f"{READY_LINE}{plane.kubeconfig}", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        state.truncate(0)
    return 0


def detach() -> int:
    """Start `up` with the other arguments in a new process session, and return when it is ready."""
    argv = [sys.executable, "-m", "tools.controlplane", *(word for word in sys.argv[1:] if word != "--detach")]
    null, pipe, stdout = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    process = subprocess.Popen(argv, stdin=null, stdout=pipe, stderr=stdout, text=True, start_new_session=True)
    for line in process.stdout or ():
        print(line, end="", flush=True)
        if line.startswith(READY_LINE):
            return 0
    return process.wait()


def down() -> int:
    """Stop the running plane and wait for its end."""
    state = _open_state()
    facts = _facts(state)
    if facts is None:
        print("no plane is up")
        return 1
    os.kill(int(str(facts["pid"])), signal.SIGTERM)
    fcntl.flock(state, fcntl.LOCK_EX)
    return 0


def status() -> int:
    """Print the facts about the running plane."""
    facts = _facts(_open_state())
    print("no plane is up" if facts is None else json.dumps(facts, indent=2))
    return facts is None


def env() -> int:
    """Print the environment variables for using the running plane in a shell."""
    facts = _facts(_open_state())
    if facts is None:
        print("error: no plane is up; start one with `up --detach`", file=sys.stderr)
        return 1
    print(f"{READY_LINE}{facts['kubeconfig']}")
    print(f"export PATH={facts['bin_dir']}:$PATH")
    return 0


def _open_state() -> TextIO:
    parent = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dovetail"
    parent.mkdir(parents=True, exist_ok=True)
    return (parent / "controlplane.json").open("a+")


def _locked(state: TextIO) -> bool:
    try:
        fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _facts(state: TextIO) -> dict[str, object] | None:
    """The state that the process with the lock wrote; None if there is none or it is still starting."""
    if _locked(state):
        return None
    state.seek(0)
    facts: dict[str, object] | None = json.loads(state.read() or "null")
    return facts


if __name__ == "__main__":
    sys.exit(main())
