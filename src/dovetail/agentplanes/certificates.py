# SPDX-License-Identifier: Apache-2.0
"""The certificate of the endpoints: read from files, and again when these are replaced."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from msgspec import Struct

_EVERY_S = 30.0
_log = logging.getLogger(__name__)


class CertificateFiles(Struct, frozen=True):
    """Certificate and key as PEM, as a Secret of the type kubernetes.io/tls has them."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """The settings of a server with them. Raises OSError, which ssl.SSLError is, too."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        return context

    def written_ns(self) -> tuple[int, int]:
        """When the files were written."""
        return self.certificate.stat().st_mtime_ns, self.key.stat().st_mtime_ns


async def keep_fresh(files: CertificateFiles, context: ssl.SSLContext, every_s: float = _EVERY_S) -> None:
    """New connections get the certificate that is in the files, until cancelled. A pair that cannot be used leaves the
    one that is in force."""
    known = await asyncio.to_thread(files.written_ns)
    while True:
        await asyncio.sleep(every_s)
        try:
            found = await asyncio.to_thread(files.written_ns)
            if found != known:
                await asyncio.to_thread(files.context)
                context.load_cert_chain(files.certificate, files.key)
                known = found
                _log.info("the certificate %s was replaced", files.certificate)
        except OSError as error:
            _log.warning("the certificate %s cannot be used: %s", files.certificate, error)
