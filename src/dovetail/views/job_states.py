# SPDX-License-Identifier: Apache-2.0
"""The states of a job in lists, and the words that stand for them."""

from __future__ import annotations

RUNNING, ENDING, WAITING, COMPLETED, FAILED = "Running", "Ending", "Waiting", "Completed", "Failed"
UNFINISHED, DONE = (RUNNING, ENDING, WAITING), (COMPLETED, FAILED)
STATES = {
    "running": (RUNNING,),
    "ending": (ENDING,),
    "waiting": (WAITING,),
    "pending": (WAITING,),
    "completed": (COMPLETED,),
    "failed": (FAILED,),
    "done": DONE,
    "all": (*UNFINISHED, *DONE),
}
