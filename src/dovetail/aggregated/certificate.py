# SPDX-License-Identifier: Apache-2.0
"""The serving certificate of one process: self-signed, with a key that no one else has.

Rules: it holds as long as the process; the API server trusts this very certificate, so nothing is shared. The `ssl`
module reads keys from files alone: key and certificate are for a moment in a file without a name.
"""

from __future__ import annotations

import datetime
import os
import ssl

_LIFETIME = datetime.timedelta(days=3650)
_SKEW = datetime.timedelta(days=1)


class ServingCertificate:
    """A new key, and a certificate for `host`. Raises ImportError without the package `cryptography`."""

    def __init__(self, host: str) -> None:
        # Imported here: only servers need it, which is the extra `views` of the package.
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dovetail")])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .sign(key, hashes.SHA256())
        )
        self._key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.pem = certificate.public_bytes(Encoding.PEM).decode()

    def context(self, client_ca_pem: str) -> ssl.SSLContext:
        """The settings of a server that asks for a client certificate which this authority has signed. A client without
        one is let in to be refused in HTTP; one with another certificate is refused by TLS. Raises OSError for an
        authority that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=client_ca_pem)
        context.set_alpn_protocols(["http/1.1"])
        file = os.memfd_create("serving", os.MFD_CLOEXEC)
        try:
            os.write(file, self.pem.encode() + self._key_pem)
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        return context
