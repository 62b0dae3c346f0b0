# SPDX-License-Identifier: Apache-2.0
"""What Debian's maintainer scripts would make and the image needs: links of the merged /usr, users, certificates,
`dovetail`.

Rules: two users, root for the agent and 65532 for all else; a name service of files and DNS; no shell.
"""

from collections.abc import Iterator

from tools.images import tree
from tools.images.tree import DIRECTORY, Entry, Kind, Tree

USER = 65532
HOME = "home/nonroot"
COMMAND = "usr/bin/dovetail"
_PASSWD = f"""\
root:x:0:0:root:/root:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
nonroot:x:{USER}:{USER}:nonroot:/{HOME}:/usr/sbin/nologin
"""
_GROUP = f"root:x:0:\nnobody:x:65534:\nnonroot:x:{USER}:\n"
_START = """\
#!/usr/bin/python3.11
import sys

from dovetail.cli import main

sys.exit(main())
"""
_CERTIFICATES = "usr/share/ca-certificates/mozilla/"


def system_tree(packages: Tree) -> Tree:
    """What is added to the files of Debian's packages."""
    return {
        **{name: tree.link(f"usr/{name}") for name in ("bin", "lib", "lib64", "sbin")},
        **dict.fromkeys(("dev", "proc", "run", "sys", "root", "usr/sbin", "usr/bin", "var/lib/dovetail"), DIRECTORY),
        "tmp": Entry(Kind.DIRECTORY, 0o1777),
        "var/tmp": Entry(Kind.DIRECTORY, 0o1777),
        "var/run": tree.link("/run"),
        HOME: Entry(Kind.DIRECTORY, 0o755, owner=USER),
        "etc/passwd": tree.file(_PASSWD),
        "etc/group": tree.file(_GROUP),
        "etc/nsswitch.conf": tree.file("passwd: files\ngroup: files\nhosts: files dns\n"),
        "etc/ssl/certs/ca-certificates.crt": tree.file(b"".join(_certificates(packages))),
        "usr/lib/ssl/cert.pem": tree.link("/etc/ssl/certs/ca-certificates.crt"),
        "usr/bin/python3": tree.link("python3.11"),
    }


def command_tree() -> Tree:
    """The command `dovetail`. The kernel starts its Python: no shell is needed."""
    return {COMMAND: tree.file(_START, 0o755)}


def _certificates(packages: Tree) -> Iterator[bytes]:
    for path in sorted(packages):
        if path.startswith(_CERTIFICATES) and path.endswith(".crt"):
            yield packages[path].content.rstrip(b"\n") + b"\n"
