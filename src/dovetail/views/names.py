# SPDX-License-Identifier: Apache-2.0
"""Names that users ask for: the kinds of object that one can mean, the error where none has it, and similar names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ANY, POD, JOB = "", "pod", "job"
"""The kinds of object that a name can mean."""
_SHOWN = 5
_LONGEST_KNOWN = 512
"""No name of an object is longer, with its namespace and what stands before that."""
HINT = "; did you mean "


class JobNotFound(Exception):
    """No unfinished object has this name; the message has the name and similar names."""


def nearest(name: str, names: Iterable[str]) -> str:
    """ "; did you mean A, B?" for similar names, else "". Those of the same namespace are compared without it, as it is
    equal in all of them. Nothing is like a name that is longer than any: to compare that takes seconds."""
    if len(name) > _LONGEST_KNOWN:
        return ""
    # Imported here: most names exist.
    from difflib import get_close_matches

    known = dict.fromkeys(names)
    namespace, _, short = name.rpartition("/")
    beside = {one.rpartition("/")[2]: one for one in known if one.rpartition("/")[0] == namespace}
    similar = [beside[one] for one in get_close_matches(short, beside, _SHOWN)]
    similar = similar or get_close_matches(name, known.keys() - set(beside.values()), _SHOWN)
    inside = sorted(one for one in known if short and (short in one or one.rpartition("/")[2] in short))
    near = list(dict.fromkeys((*similar, *inside)))[:_SHOWN]
    return f"{HINT}{', '.join(near)}?" if near else ""


def some(names: Sequence[str], shown: int = 3) -> str:
    """The first few names, and the number of the others."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")
