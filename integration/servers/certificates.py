"""Certificates of tests: an authority of the test's own, and what it vouches for."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY: Final = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: of the authority, of the certificate, of its key."""

    ca: Path
    cert: Path
    key: Path


class Authority:
    """Files are written to ``folder``, which is made if it does not exist."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        builder = _begin(self._key, name, name, ends_in=DAY)
        self._certificate = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        ).sign(self._key, hashes.SHA256())
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def certify(self, host: str = "127.0.0.1", *, ends_in: datetime.timedelta = DAY) -> Certificates:
        """A pair for the host, an IP address; below 0 it has expired. It replaces the files of the previous pair."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        builder = _begin(key, name, self._certificate.subject, ends_in=ends_in)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        builder = builder.add_extension(names, critical=False).add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        files = Certificates(self.ca, self.folder / "cert.pem", self.folder / "key.pem")
        certificate = builder.sign(self._key, hashes.SHA256())
        files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files


def make_certificates(folder: Path) -> Certificates:
    """An authority of its own, and a pair for 127.0.0.1, valid for a day."""
    return Authority(folder).certify()


def _begin(
    key: ec.EllipticCurvePrivateKey, subject: x509.Name, issuer: x509.Name, *, ends_in: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + ends_in)
    )
