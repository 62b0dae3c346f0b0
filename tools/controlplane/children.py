# SPDX-License-Identifier: Apache-2.0
"""The processes of one plane. None of them outlives the process that started them.

Rules: every child is in the process group of a keeper, a shell that only waits for the end of its standard input. Only
this process holds the other end of that pipe. When this process ends in any way (return, exception, SIGKILL), the
keeper removes the scratch directory and kills its group. PR_SET_PDEATHSIG is not suitable: it fires when the *thread*
that forked ends, and a worker thread may start a plane. The group is not the terminal's foreground group, so Ctrl-C
reaches only this process, which then stops its children in order.
A child is stopped by SIGKILL: no component needs an orderly shutdown, and etcd survives it.
The module is independent of Kubernetes.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

# The second rm removes files that a child created during the first. Killing the children first would kill the keeper.
KEEPER = 'cat >/dev/null; rm -rf "$1" || rm -rf "$1"; kill -KILL 0'


class Children:
    """Named child processes and the scratch directory that is removed with them."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._keeper: subprocess.Popen[bytes] | None = None

    def open(self, scratch: Path) -> None:
        """Start the keeper, which from now on owns `scratch`."""
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", KEEPER, "keeper", str(scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name of the children that were started and not stopped."""
        return {name: process.pid for name, process in self._running.items()}

    def start(self, name: str, argv: Sequence[str], log: Path) -> None:
        """Start a child whose output is appended to `log`. Raises OSError if it cannot be executed."""
        if not self._keeper:
            raise RuntimeError(f"{name} cannot be started: the plane is not started, or it is stopped")
        with log.open("ab") as output:
            self._running[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=self._keeper.pid
            )

    def exit_status(self, name: str) -> int | None:
        """The exit status of a started child, None while it runs."""
        return self._running[name].poll()

    def stop(self, name: str) -> None:
        """Kill a child, if it was started, and wait for its end."""
        process = self._running.pop(name, None)
        if process:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stop every child, then let the keeper remove the scratch directory. Does nothing if it is not open."""
        for name in reversed(list(self._running)):
            self.stop(name)
        if self._keeper:
            # This closes its standard input and waits.
            self._keeper.communicate()
            self._keeper = None


def tail(text: str, lines: int = 20) -> str:
    """The last lines of a log, indented for an error message."""
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])
