# SPDX-License-Identifier: Apache-2.0
"""In which hours of a day pods of a job ended, without their names: what is read to show one job of a year.

Rules
- A job is four bytes of the hash of its name, in any namespace, so some hours are named in vain: records decide.
- Pods that had not ended when the day did are under the hour 0, as in the chunks of pods.
"""

from __future__ import annotations

from collections import defaultdict
from hashlib import blake2b

import numpy as np
from msgspec import Struct

_BYTES = 4


class JobIndex(Struct, frozen=True, array_like=True):
    """Of each hour the hashes of the jobs, sorted, one after the other."""

    hours: list[int]
    hashes: list[bytes]

    def hours_of(self, name: str) -> set[int]:
        """The hours in which a pod of a job of this name may have ended."""
        wanted = np.frombuffer(_hash(name), "<u4")[0]
        return {
            at_ms
            for at_ms, hashes in zip(self.hours, self.hashes, strict=False)
            if (np.frombuffer(hashes[: len(hashes) // _BYTES * _BYTES], "<u4") == wanted).any()
        }


class JobIndexer:
    """Makes the index of a day."""

    def __init__(self) -> None:
        self._hours: defaultdict[int, set[bytes]] = defaultdict(set)

    def add(self, name: str, at_ms: int) -> None:
        """A pod of a job of this name ended in the hour."""
        self._hours[at_ms].add(_hash(name))

    def made(self) -> JobIndex:
        hours = sorted(self._hours)
        return JobIndex(hours, [b"".join(sorted(self._hours[at_ms])) for at_ms in hours])


def _hash(name: str) -> bytes:
    return blake2b(name.encode(errors="surrogatepass"), digest_size=_BYTES).digest()
