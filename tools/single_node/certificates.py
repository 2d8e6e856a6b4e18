"""Keys and certificates of one cluster, by openssl: one authority and its certificates."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from single_node.needs import program

_DAYS = "7"


class Authority:
    """A certificate authority in a folder that only root can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700)
        self.certificate, self._key = folder / "ca.crt", folder / "ca.key"
        _openssl(
            *_KEY, "-x509", "-days", _DAYS, "-subj", "/CN=tandem-e2e",
            "-keyout", str(self._key), "-out", str(self.certificate),
        )  # fmt: skip

    def sign(self, name: str, subject: str, addresses: Sequence[str] = ()) -> tuple[Path, Path]:
        """A server's certificate for these addresses (`DNS:…`, `IP:…`), or a client's if there
        are none; and its key."""
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text(
            f"subjectAltName={','.join(addresses)}\nextendedKeyUsage=serverAuth\n"
            if addresses
            else "extendedKeyUsage=clientAuth\n"
        )
        _openssl(*_KEY, "-subj", subject, "-keyout", str(key), "-out", str(request))
        _openssl(
            "x509", "-req", "-in", str(request), "-days", _DAYS, "-CA", str(self.certificate),
            "-CAkey", str(self._key), "-CAcreateserial", "-extfile", str(extensions),
            "-out", str(certificate),
        )  # fmt: skip
        return certificate, key

    def signing_key(self, name: str) -> tuple[Path, Path]:
        """A key pair without a certificate, for tokens: private and public."""
        private, public = self.folder / f"{name}.key", self.folder / f"{name}.pub"
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(private))
        _openssl("ec", "-in", str(private), "-pubout", "-out", str(public))
        return private, public


_KEY = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: str) -> None:
    done = subprocess.run(
        [program("openssl"), *arguments], capture_output=True, check=False, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"openssl {' '.join(arguments)}: {done.stderr.strip()}")
