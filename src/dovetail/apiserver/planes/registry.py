# SPDX-License-Identifier: Apache-2.0
"""Which planes there are, and the bearer tokens of each: one small SQLite file, all of it in memory as well.

A token is `dovetail.ID.SECRET`. The secret has 256 random bits and is stored as its SHA-256, which is enough for random
secrets and, unlike a slow hash, costs a flood of wrong ones nothing. Each plane has a uid of its own, after which its
file is named, so that a plane that is made again under an old name finds nothing of the other. The registry locks its
file: a second process on the same folder is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sqlite3
import uuid
from pathlib import Path

from msgspec import Struct

from dovetail.apiserver.sqlite_log import StoreUnreadable

FORMAT = 2
_SCHEMA = """
CREATE TABLE planes (
  uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, origin TEXT NOT NULL, UNIQUE (namespace, name)
);
CREATE TABLE tokens (id TEXT PRIMARY KEY, plane TEXT NOT NULL, digest BLOB NOT NULL);
"""
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAMESPACE = re.compile(_LABEL)
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_PREFIX = "dovetail"
_NO_DIGEST = bytes(32)


class PlaneName(Struct, frozen=True, order=True):
    """Namespace and name of the AgentControlPlane on the host cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PlaneRegistry:
    """The planes of one folder. Raises StoreUnreadable for a file that is not its own, or is in use."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._uids: dict[PlaneName, str] = {}
        self._names: dict[str, PlaneName] = {}
        self._origins: dict[PlaneName, str] = {}
        self._tokens: dict[str, tuple[str, bytes]] = {}
        path = folder / "planes.sqlite"
        try:
            # Writes come from one caller after the other, from a thread of their own.
            self._file = sqlite3.connect(path, isolation_level=None, timeout=0.5, check_same_thread=False)
            self._read(path)
        except sqlite3.Error as error:
            raise StoreUnreadable(f"{path}: {error}") from error

    def _read(self, path: Path) -> None:
        run = self._file.execute
        for setting in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            run(f"PRAGMA {setting}")
        (found,) = run("PRAGMA user_version").fetchone()
        if found not in (0, FORMAT):
            raise StoreUnreadable(f"{path}: format {found}; this program reads format {FORMAT}")
        if found == 0:
            self._file.executescript(f"BEGIN EXCLUSIVE; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")
        path.chmod(0o600)
        for uid, namespace, name, origin in run("SELECT uid, namespace, name, origin FROM planes"):
            self._remember(uid, PlaneName(namespace, name), origin)
        self._tokens = {id: (plane, digest) for id, plane, digest in run("SELECT id, plane, digest FROM tokens")}

    def _remember(self, uid: str, name: PlaneName, origin: str) -> None:
        self._uids[name] = uid
        self._origins[name] = origin
        self._names[uid] = name

    @property
    def names(self) -> list[PlaneName]:
        return sorted(self._uids)

    def uid_of(self, name: PlaneName) -> str | None:
        return self._uids.get(name)

    def origin_of(self, name: PlaneName) -> str | None:
        """For what the plane was made."""
        return self._origins.get(name)

    def add(self, name: PlaneName, origin: str = "") -> str:
        """Makes a plane, or finds the one that is there. Returns its uid. Raises ValueError for an impossible name."""
        if not _NAMESPACE.fullmatch(name.namespace) or not _NAME.fullmatch(name.name):
            raise ValueError(f"{name}: a DNS label and a DNS subdomain are needed")
        uid = self._uids.get(name)
        if uid is None:
            uid = uuid.uuid4().hex
            self._file.execute("INSERT INTO planes VALUES (?, ?, ?, ?)", (uid, name.namespace, name.name, origin))
            self._remember(uid, name, origin)
        return uid

    def remove(self, name: PlaneName) -> str | None:
        """Forgets the plane and its tokens. Returns its uid, None if there was none."""
        uid = self._uids.get(name)
        if uid is None:
            return None
        # A transaction that fails is taken back: what is written later would be in it, and lost.
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute("DELETE FROM tokens WHERE plane = ?", (uid,))
            self._file.execute("DELETE FROM planes WHERE uid = ?", (uid,))
        del self._uids[name], self._names[uid], self._origins[name]
        self._tokens = {id: token for id, token in self._tokens.items() if token[0] != uid}
        return uid

    def issue(self, name: PlaneName) -> str:
        """A new token of the plane, which is shown this once. Raises KeyError if there is no such plane."""
        uid, id, secret = self._uids[name], secrets.token_hex(8), secrets.token_urlsafe(32)
        digest = hashlib.sha256(secret.encode()).digest()
        self._file.execute("INSERT INTO tokens VALUES (?, ?, ?)", (id, uid, digest))
        self._tokens[id] = uid, digest
        return f"{_PREFIX}.{id}.{secret}"

    def revoke(self, name: PlaneName, *, but: str = "") -> None:
        """Ends all tokens of the plane except this one. Raises KeyError if there is no such plane."""
        uid, kept = self._uids[name], but.split(".")[1] if but.count(".") == 2 else ""
        self._file.execute("DELETE FROM tokens WHERE plane = ? AND id <> ?", (uid, kept))
        self._tokens = {id: token for id, token in self._tokens.items() if token[0] != uid or id == kept}

    def owner(self, authorization: str) -> PlaneName | None:
        """The plane of the token in an Authorization header, None if there is no such token.

        The secrets are compared in constant time, and an unknown token takes as long as a wrong secret.
        """
        scheme, _, token = authorization.partition(" ")
        prefix, _, rest = token.strip().partition(".")
        id, _, secret = rest.partition(".")
        uid, digest = self._tokens.get(id, ("", _NO_DIGEST))
        same = hmac.compare_digest(hashlib.sha256(secret.encode(errors="replace")).digest(), digest)
        return self._names.get(uid) if same and scheme.lower() == "bearer" and prefix == _PREFIX else None

    def close(self) -> None:
        self._file.close()
