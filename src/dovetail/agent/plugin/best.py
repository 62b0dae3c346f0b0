# SPDX-License-Identifier: Apache-2.0
"""The best GPUs for a pod without chosen devices, computed in a separate process.

Numpy and the tables of all sets would stay in the agent's memory on every node, and are needed only for pods of other
schedulers. The first answer takes a third of a second; answers are cached.
"""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

import msgspec

from dovetail.core.devices.layout import Layout
from dovetail.core.json_text import decode_json

_TIMEOUT_S = 20.0


class _Question(msgspec.Struct, frozen=True):
    layout: Layout
    free: int
    having: int
    size: int


class NoAnswer(Exception):
    """The process failed; the message has the reason."""


@lru_cache(maxsize=512)
def best(layout: Layout, free: int, having: int, size: int) -> int:
    """The best set of `size` GPUs, as bits: all of `having`, and the others of `free`. Best are the best links
    (`core.devices.bandwidth`), then the most that is left for others, then the lowest numbers. Raises NoAnswer."""
    question = msgspec.json.encode(_Question(layout, free, having, size))
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__], input=question, capture_output=True, timeout=_TIMEOUT_S, check=True
        )
        return int(done.stdout)
    except subprocess.CalledProcessError as error:
        raise NoAnswer(error.stderr.decode(errors="replace").strip()[-500:]) from error
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(str(error)) from error


def answer(question: bytes) -> int:
    """The answer of the process."""
    from dovetail.core.devices.bandwidth import sets_of

    asked = decode_json(question, _Question)
    sets, everything = sets_of(asked.layout), asked.free | asked.having
    found = sets.masks[
        (sets.size == asked.size) & (sets.masks & ~everything == 0) & (sets.masks & asked.having == asked.having)
    ]
    found = found[sets.quality[found] == sets.quality[found].max()]
    # argmax takes the first of equals, and masks ascend: the lowest numbers.
    return int(found[sets.worth[everything ^ found].argmax()])


if __name__ == "__main__":
    print(answer(sys.stdin.buffer.read()))
