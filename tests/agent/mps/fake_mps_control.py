# SPDX-License-Identifier: Apache-2.0
"""Stands for nvidia-cuda-mps-control: `-f` is the daemon, without arguments it passes commands from its input to it.

As the real one: the daemon is found by CUDA_MPS_PIPE_DIRECTORY, refuses to run twice there, forgets all limits when it
ends, and starts a server for the first client, which keeps the limits of that moment. A test plays a client by the
command `client`, which the real one does not have, and sets faults by files in the pipe directory: `hang` (nothing is
answered any more), `broken` (the daemon ends at its start), `deaf` (limits are not taken).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

PIPE = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
SOCKET = PIPE / "control"


def daemon() -> int:
    if (PIPE / "broken").exists():
        print("Failed to start: no GPU can be used", flush=True)
        return 1
    (PIPE / "starts").open("a").write(f"{os.getpid()}\n")
    if _answers():
        print("An instance of this daemon is already running", flush=True)
        return 1
    SOCKET.unlink(missing_ok=True)
    limits: dict[str, str] = {}
    percentage = "100.0"
    server: dict[str, object] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(SOCKET))
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection:
                while (PIPE / "hang").exists():
                    time.sleep(0.01)
                words = connection.recv(4096).decode().split()
                deaf = (PIPE / "deaf").exists()
                answer = ""
                match words:
                    case ["get_default_active_thread_percentage"]:
                        answer = percentage
                    case ["set_default_active_thread_percentage", value]:
                        percentage = percentage if deaf else f"{float(value)}"
                    case ["set_default_device_pinned_mem_limit", device, value] if value[-1] in "MG":
                        limits[device] = value
                    case ["client"]:
                        server = server or {"percentage": percentage, "limits": dict(limits)}
                        answer = json.dumps(server)
                    case ["quit"]:
                        SOCKET.unlink()
                        return 0
                    case _:
                        answer = "Unrecognized command"
                # The client may have timed out.
                try:
                    connection.sendall(answer.encode() + b"\n")
                except OSError:
                    continue


def _answers() -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(SOCKET)) == 0


def command() -> int:
    # Read first: the daemon serves one client at a time, and one that has sent nothing yet would block the others.
    line = sys.stdin.readline()
    with socket.socket(socket.AF_UNIX) as connection:
        if connection.connect_ex(str(SOCKET)):
            print("Cannot find MPS control daemon process")
            return 1
        connection.sendall(line.encode())
        print(connection.makefile().read().strip())
    return 0


sys.exit(daemon() if "-f" in sys.argv else command())
