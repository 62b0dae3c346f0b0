# SPDX-License-Identifier: Apache-2.0
"""Certificates of a temporary certificate authority, and the kubeconfig files that contain them.

Rules: keys are P-256 (issuing one takes well under a millisecond). A client certificate's CN is the user name and its O
are the groups, as kube-apiserver expects. The authority's key stays in memory.
The credentials are for tests only, not for a cluster with valuable data.
"""

import datetime
import ipaddress
from base64 import b64encode
from collections.abc import Iterable, Mapping

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier
from msgspec import Struct

LIFETIME = datetime.timedelta(days=365)
CLOCK_SKEW = datetime.timedelta(minutes=5)


class KeyPair(Struct, frozen=True):
    """A certificate and its private key, both PEM."""

    certificate_pem: bytes
    key_pem: bytes


class Authority:
    """A certificate authority that lives as long as this object."""

    def __init__(self, name: str) -> None:
        self._key = new_key()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _unsigned(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = certificate.public_bytes(Encoding.PEM)

    def server(self, hosts: Iterable[str], addresses: Iterable[str]) -> KeyPair:
        """Issue a serving certificate for host names and IP addresses."""
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        return self._issue(subject, ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, user: str, groups: Iterable[str] = ()) -> KeyPair:
        """Issue a client certificate that authenticates as `user`, a member of `groups`."""
        organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        return self._issue(subject, ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def _issue(self, subject: x509.Name, usage: ObjectIdentifier, names: list[x509.GeneralName]) -> KeyPair:
        key = new_key()
        builder = (
            _unsigned(subject, self._name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            # Python 3.13 verifies strictly and rejects a chain without this extension.
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return KeyPair(certificate.public_bytes(Encoding.PEM), key_pem(key))


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a P-256 private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Encode a private key as kube-apiserver reads it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())


def kubeconfig(server: str, ca_pem: bytes, user: KeyPair | str) -> str:
    """The text of a kubeconfig with everything inline; `user` is a client certificate or a bearer token."""
    credentials: Mapping[str, str]
    if isinstance(user, KeyPair):
        credentials = {
            "client-certificate-data": b64encode(user.certificate_pem).decode(),
            "client-key-data": b64encode(user.key_pem).decode(),
        }
    else:
        credentials = {"token": user}
    cluster = {"server": server, "certificate-authority-data": b64encode(ca_pem).decode()}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "plane", "cluster": cluster}],
            "users": [{"name": "user", "user": credentials}],
            "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "user"}}],
            "current-context": "plane",
        }
    )


def _unsigned(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
