# SPDX-License-Identifier: Apache-2.0
"""Our identity to the API server: a bearer token, a client certificate or both, and how long they hold good.

A source is frozen data with one blocking method, `issue`: `Files` reads what lies on disk (or was inline), `ExecPlugin`
runs a credential plugin (client.authentication.k8s.io v1 and v1beta1). `Credentials` keeps what a source issued until
it expires, and asks again off the event loop. Knows nothing of HTTP and never logs a secret.
"""

import asyncio
import os
import subprocess
import time
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api.errors import ConfigError

# client-go re-reads token files every minute; ten seconds costs nothing and also covers rotated certificates.
_REREAD_S = 10.0
_EXEC_TIMEOUT_S = 60.0
# Ask a plugin again this long before its credential runs out, so that no request leaves with one that dies on the way.
_EXPIRY_LEEWAY_S = 10.0


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a request. `client_pem` is the certificate chain followed by its key; "" means there is none."""

    token: str = field(default="", repr=False)
    client_pem: str = field(default="", repr=False)
    valid_s: float = inf


class CredentialSource(Protocol):
    def issue(self) -> Identity:
        """The identity as of now. May block; raises ConfigError."""


def read(path: Path, what: str) -> str:
    """The text of a file; ConfigError names the file and the field (`what`) that pointed to it."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: cannot read {path}: {error}") from error


@dataclass(frozen=True, slots=True)
class Files:
    """Credentials in the kubeconfig or the service account mount; files are read again as they are rotated."""

    token: str = field(default="", repr=False)
    token_file: Path | None = None
    client_pem: str = field(default="", repr=False)
    cert_file: Path | None = None
    key_file: Path | None = None

    def issue(self) -> Identity:
        token, pem = self.token, self.client_pem
        if self.token_file:
            token = read(self.token_file, "tokenFile").strip()
            if not token:
                raise ConfigError(f"tokenFile: {self.token_file} is empty")
        if self.cert_file and self.key_file:
            pem = read(self.cert_file, "client-certificate") + "\n" + read(self.key_file, "client-key")
        return Identity(token, pem, _REREAD_S if self.token_file or self.cert_file else inf)


class _ExecStatus(Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(Struct, rename="camel"):
    api_version: str = ""
    status: _ExecStatus | None = None


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A command that prints an ExecCredential. `where` is the file and field that named it, for messages.

    The plugin cannot prompt: it runs without a terminal, so one with `interactiveMode: Always` is refused when the
    kubeconfig is read.
    """

    command: str
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = field(repr=False)
    info: str
    api_version: str
    where: str
    install_hint: str = ""

    def issue(self) -> Identity:
        env = os.environ | dict(self.env) | {"KUBERNETES_EXEC_INFO": self.info}
        try:
            done = subprocess.run(
                [self.command, *self.args],
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_EXEC_TIMEOUT_S,
                check=True,
            )
            credential = decode_json(done.stdout, _ExecCredential)
        except FileNotFoundError as error:
            raise ConfigError(f"{self.where}: {self.command!r} is not installed. {self.install_hint}") from error
        except subprocess.CalledProcessError as error:
            stderr = error.stderr.decode(errors="replace").strip()[:300]
            raise ConfigError(f"{self.where}: {self.command!r} exited with {error.returncode}: {stderr}") from error
        except (OSError, subprocess.TimeoutExpired, JsonError) as error:
            # A decode error quotes positions and types, never the token itself.
            raise ConfigError(f"{self.where}: {self.command!r} gave no credential: {error}") from error
        status = credential.status
        if credential.api_version != self.api_version or status is None:
            raise ConfigError(f"{self.where}: {self.command!r} printed no ExecCredential of {self.api_version}")
        pem = ""
        if status.client_certificate_data and status.client_key_data:
            pem = f"{status.client_certificate_data}\n{status.client_key_data}"
        if not status.token and not pem:
            raise ConfigError(f"{self.where}: {self.command!r} gave neither a token nor a certificate with its key")
        expires = status.expiration_timestamp
        valid_s = max(0.0, expires.timestamp() - time.time() - _EXPIRY_LEEWAY_S) if expires else inf
        return Identity(status.token, pem, valid_s)


class Credentials:
    """The identity in force. `fresh` costs a comparison; `renew` reads the source, once for all waiting callers, also
    for those that come after one that was cancelled: a plugin is not run twice at a time, as it may use up a token."""

    def __init__(self, source: CredentialSource) -> None:
        self._source = source
        self._identity: Identity | None = None
        self._expires_s = 0.0
        self._renewing: asyncio.Task[Identity] | None = None

    def fresh(self) -> Identity | None:
        """The identity, or None when it is time to `renew`."""
        return self._identity if time.monotonic() < self._expires_s else None

    async def renew(self, refused: Identity | None = None) -> Identity:
        """Read the source, unless another caller has just done so. `refused` is the identity a server answered 401 to.

        Raises ConfigError. When a file or plugin fails but no server refused the old identity, that one stays in use
        for another ten seconds: a token file being replaced must not stop a scheduler.
        """
        if self._renewing is None or self._renewing.done():
            current = self.fresh()
            if current and current is not refused:
                return current
            self._renewing = asyncio.get_running_loop().create_task(self._renew(refused))
            # A failure that nobody waits for any more is found again by the next request.
            self._renewing.add_done_callback(lambda renewing: renewing.cancelled() or renewing.exception())
        return await asyncio.shield(self._renewing)

    async def _renew(self, refused: Identity | None) -> Identity:
        try:
            identity = await asyncio.to_thread(self._source.issue)
        except ConfigError:
            if self._identity is None or refused is not None:
                raise
            identity = Identity(self._identity.token, self._identity.client_pem, _REREAD_S)
        self._identity = identity
        self._expires_s = time.monotonic() + identity.valid_s
        return identity
