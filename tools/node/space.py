# SPDX-License-Identifier: Apache-2.0
"""The namespaces of a node's processes: a mount namespace and a PID namespace over the machine's file system.

Rules: inside, the node's private directories (`own`) are at their usual paths, and some files of /proc/sys and /sys are
replaced, so the node writes nothing to the machine and several nodes do not conflict. `outside` returns the path of
such a file or socket for a process outside the namespaces. Nothing outlives the process that opened the space: the
first process of the PID namespace waits for the end of its standard input, a pipe whose other end only this process
holds. When this process ends in any way, the kernel kills all processes in the namespace, containers too, and removes
its mounts. A shell outside removes the cgroups and the scratch folder. A process that is started in the space is a
child of this process, and this process can signal its id.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.controlplane.children import tail

# Arguments: the scratch folder, then the cgroups. Before the first line of input only these need to be removed.
KEEPER = """\
scratch=$1
shift
if read -r go; then
    # What `sh` is left with by dying processes it reaps while it waits for `cat`.
    unshare --mount --pid --fork --kill-child /bin/sh -eu "$scratch/init.sh" "$scratch"
fi
for attempt in 1 2 3 4 5; do
    left=
    for cgroup; do
        if [ -e "$cgroup" ]; then find "$cgroup" -depth -type d -exec rmdir {} + || left=1; fi
    done
    if [ -z "$left" ]; then break; fi
    sleep 0.2
done
rm -rf "$scratch"
"""

# Every path of `own.list` becomes the folder of the same name under $1/root. A path that does not exist on the machine
# is no mount point and must not be created there: its parent is replaced by a mirror in memory with the same content.
INIT = """\
read -r pid rest </proc/self/stat
mount --make-rprivate /
mount -t proc proc /proc
mirror() {
    mkdir -p "$1/mirror"
    mount -t tmpfs -o mode="$(stat -c %a "$2")" tmpfs "$1/mirror"
    for entry in "$2"/* "$2"/.[!.]*; do
        copy=$1/mirror/${entry##*/}
        if [ -L "$entry" ]; then cp -P "$entry" "$copy"
        elif [ -d "$entry" ]; then mkdir "$copy"; mount --rbind "$entry" "$copy"
        elif [ -e "$entry" ]; then : >"$copy"; mount --bind "$entry" "$copy"
        fi
    done
    mount --move "$1/mirror" "$2"
}
mirrored=:
while read -r path; do
    mkdir -p "$1/root$path"
    if [ ! -d "$path" ]; then
        parent=$path
        while [ ! -d "$parent" ]; do parent=${parent%/*}; parent=${parent:-/}; done
        if [ "$parent" = / ]; then
            echo "$path: only below a directory that exists can the node have its own" >&2
            exit 1
        fi
        case $mirrored in *:"$parent":*) ;; *) mirror "$1" "$parent"; mirrored=$mirrored$parent: ;; esac
        mkdir -p "$path"
    fi
    mount --bind "$1/root$path" "$path"
done <"$1/own.list"
while read -r source target; do
    if [ -e "$target" ]; then mount --bind "$source" "$target"; fi
done <"$1/replaced.list"
echo "$pid"
exec >/dev/null
cat >/dev/null
exit 0
"""

CLONE_NEWPID = 0x20000000


class SpaceFailed(Exception):
    """The namespaces cannot be created. The message has the output of the shell."""


class Space:
    """The namespaces of one node, not created yet.

    scratch, cgroups: folders that the space owns from now on and removes at its end; the cgroups need not exist yet.
    log: file for errors of the namespaces.
    """

    def __init__(self, scratch: Path, cgroups: Sequence[Path], log: Path) -> None:
        self._scratch = scratch
        self._log = log
        self._own: list[Path] = []
        self._children: list[subprocess.Popen[bytes]] = []
        with log.open("ab") as output:
            self._keeper = subprocess.Popen(
                ["/bin/sh", "-c", KEEPER, "keeper", scratch, *cgroups],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                process_group=0,
            )

    def open(self, own: Sequence[Path], replaced: Mapping[Path, Path]) -> None:
        """Make the namespaces.

        own: private directories of the node; replaced: paths of the machine with their replacements.
        Raises SpaceFailed.
        """
        self._own = [folder.resolve() for folder in own]
        (self._scratch / "init.sh").write_text(INIT)
        (self._scratch / "own.list").write_text("".join(f"{folder}\n" for folder in self._own))
        (self._scratch / "replaced.list").write_text("".join(f"{new} {old}\n" for old, new in replaced.items()))
        assert self._keeper.stdin and self._keeper.stdout
        self._keeper.stdin.write(b"go\n")
        self._keeper.stdin.flush()
        first = self._keeper.stdout.readline()
        if not first:
            raise SpaceFailed(f"the node's namespaces cannot be made:\n{tail(self._log.read_text(errors='replace'))}")
        self._init = int(first)

    def outside(self, path: Path | str) -> Path:
        """The path outside of a path in one of the node's private directories. Raises ValueError for other paths."""
        resolved = Path(os.path.realpath(Path(path).parent)) / Path(path).name
        if not any(resolved.is_relative_to(folder) for folder in self._own):
            raise ValueError(f"{path} is not in a directory of the node's own: {', '.join(map(str, self._own))}")
        return self._scratch / "root" / resolved.relative_to("/")

    def start(
        self, argv: Sequence[str | Path], environment: Mapping[str, str], output: Path | int
    ) -> subprocess.Popen[bytes]:
        """Start a process in the namespaces, in / and with only this environment.

        output: a file to append to, or a value for stdout and stderr of `subprocess.Popen`.
        Raises OSError if it cannot be executed.
        """
        with contextlib.ExitStack() as opened:
            sink = opened.enter_context(output.open("ab")) if isinstance(output, Path) else output
            # nsenter enters only the mount namespace and then executes the program: one process, one id.
            enter = [_NSENTER, f"--mount=/proc/{self._init}/ns/mnt", "--wd=/", "--", *argv]
            with _children_in(self._init):
                process = subprocess.Popen(
                    enter, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment, process_group=0
                )
        self._children = [child for child in self._children if child.poll() is None] + [process]
        return process

    def close(self) -> None:
        """Kill all processes in the namespaces, and remove them, the cgroups and the scratch folder."""
        # The kernel ends the namespace only after our children in it are reaped.
        for child in self._children:
            child.kill()
            child.wait()
        if self._keeper.returncode is None:
            self._keeper.communicate()


_NSENTER = shutil.which("nsenter") or "nsenter"
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def _children_in(pid: int) -> Iterator[None]:
    """Within this context, children of this thread start in the PID namespace of process `pid`."""
    with open(f"/proc/{pid}/ns/pid") as theirs, open("/proc/self/ns/pid") as ours:  # noqa: PTH123
        _set_namespace(theirs.fileno())
        try:
            yield
        finally:
            _set_namespace(ours.fileno())


def _set_namespace(descriptor: int) -> None:
    if _LIBC.setns(descriptor, CLONE_NEWPID):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
