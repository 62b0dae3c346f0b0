# SPDX-License-Identifier: Apache-2.0
"""Stands for the daemon of nvidia-cuda-mps-control, `-f`; fake_mps_control.c passes commands to it.

As the real one: it is found by CUDA_MPS_PIPE_DIRECTORY, refuses to run twice there, forgets all limits when it
ends, and starts a server for the first client, which keeps the limits of that moment. A test plays a client by the
command `client`, which the real one does not have, and sets faults by files in the pipe directory: `hang` (nothing is
answered any more), `broken` (the daemon ends at its start), `deaf` (limits are not taken).

It imports little, as each test starts it: Python starts in half the time without pathlib.
"""

from __future__ import annotations

import os
import socket
import sys
import time

PIPE = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
SOCKET = f"{PIPE}/control"


def _has(fault: str) -> bool:
    return os.path.exists(f"{PIPE}/{fault}")  # noqa: PTH110


def daemon() -> int:
    if _has("broken"):
        print("Failed to start: no GPU can be used", flush=True)
        return 1
    with open(f"{PIPE}/starts", "a") as starts:  # noqa: PTH123
        starts.write(f"{os.getpid()}\n")
    if _answers():
        print("An instance of this daemon is already running", flush=True)
        return 1
    if os.path.exists(SOCKET):  # noqa: PTH110
        os.unlink(SOCKET)  # noqa: PTH108
    limits: dict[str, str] = {}
    percentage = "100.0"
    server: dict[str, object] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(SOCKET)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection:
                while _has("hang"):
                    time.sleep(0.01)
                words = connection.recv(4096).decode().split()
                deaf = _has("deaf")
                answer = ""
                match words:
                    case ["get_default_active_thread_percentage"]:
                        answer = percentage
                    case ["set_default_active_thread_percentage", value]:
                        percentage = percentage if deaf else f"{float(value)}"
                    case ["set_default_device_pinned_mem_limit", device, value] if value[-1] in "MG":
                        limits[device] = value
                    case ["client"]:
                        # Imported here, as it takes as long as all the rest.
                        import json

                        server = server or {"percentage": percentage, "limits": dict(limits)}
                        answer = json.dumps(server)
                    case ["quit"]:
                        os.unlink(SOCKET)  # noqa: PTH108
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
        return probe.connect_ex(SOCKET) == 0


sys.exit(daemon())
