"""A real etcd over TLS that asks for passwords, set up by `tandem etcd-user`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import trustme
from aetcd import rpc
from typer.testing import CliRunner

from cluster_processes import EtcdMember, free_ports, scratch
from cluster_processes import etcd as make_etcd
from tandem.cli.app import app
from tandem.locks.etcd.store import EtcdSettings

PREFIX = "/tandem/v1"


@dataclass
class Locked:
    """An etcd that asks for passwords, over TLS."""

    folder: Path
    endpoint: str
    member: EtcdMember

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text + "\n")
        return str(path)

    def tandem(self, *more: str, root: str = "root's word", user: str = "ours") -> tuple[int, str]:
        """`tandem etcd-user`: its exit code, and its output."""
        done = CliRunner().invoke(
            app,
            [
                *("etcd-user", "--etcd-endpoint", f"https://{self.endpoint}"),
                *("--etcd-ca", str(self.folder / "ca.pem")),
                *("--root-password-file", self.file("root", root)),
                *("--etcd-user", "tandem", "--etcd-password-file", self.file("user", user)),
                *("--etcd-prefix", PREFIX, "--wait", "20", *more),
            ],
        )
        return done.exit_code, done.output

    def settings(self, **changes: Any) -> EtcdSettings:
        chosen = EtcdSettings(
            (f"https://{self.endpoint}",),
            PREFIX,
            ca=self.folder / "ca.pem",
            user="tandem",
            password="ours",
            timeout_s=2.0,
        )
        return replace(chosen, **changes)

    def keys(self, user: str, password: str) -> list[bytes]:
        """All keys, as that user sees them."""

        async def read() -> list[bytes]:
            trust = grpc.ssl_channel_credentials((self.folder / "ca.pem").read_bytes())
            async with grpc.aio.secure_channel(self.endpoint, trust) as channel:
                asked = rpc.AuthenticateRequest(name=user, password=password)
                token = (await rpc.AuthStub(channel).Authenticate(asked)).token
                everything = rpc.RangeRequest(key=b"\0", range_end=b"\0", keys_only=True)
                found = await rpc.KVStub(channel).Range(everything, metadata=(("token", token),))
            return [kv.key for kv in found.kvs]

        return asyncio.run(read())

    def ask(self, user: str, password: str, *calls: tuple[str, str, Any]) -> list[str]:
        """Calls one after the other, as that user and by a client of our own: "OK", or what
        etcd says to each."""
        return asyncio.run(self._ask(user, password, calls))

    async def _ask(self, user: str, password: str, calls: Any) -> list[str]:
        trust = grpc.ssl_channel_credentials((self.folder / "ca.pem").read_bytes())
        answers = []
        async with grpc.aio.secure_channel(self.endpoint, trust) as channel:
            metadata: tuple[tuple[str, str], ...] = ()
            if user:
                asked = rpc.AuthenticateRequest(name=user, password=password)
                token = (await rpc.AuthStub(channel).Authenticate(asked)).token
                metadata = (("token", token),)
            for service, method, message in calls:
                call = getattr(getattr(rpc, f"{service}Stub")(channel), method)
                try:
                    answer = call(message, metadata=metadata, timeout=5)
                    if hasattr(answer, "read"):
                        await answer.read()
                    else:
                        await answer
                except grpc.aio.AioRpcError as error:
                    answers.append(error.details() or error.code().name)
                else:
                    answers.append("OK")
        return answers


@contextmanager
def locked_etcd() -> Iterator[Locked]:
    """One member, for the length of the block."""
    with scratch("tandem-locked-etcd-") as folder:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        authority.cert_pem.write_to_path(folder / "ca.pem")
        issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        issued.private_key_pem.write_to_path(folder / "key.pem")
        (port,) = free_ports(1)
        parts = make_etcd(folder, 1)
        (member,) = parts.members
        address = f"127.0.0.1:{port}"
        member._command += [
            f"--listen-client-urls=https://{address}",
            f"--advertise-client-urls=https://{address}",
            # Only who looks whether it is ready comes this way.
            f"--listen-metrics-urls=http://{member.endpoint}",
            f"--cert-file={folder / 'cert.pem'}",
            f"--key-file={folder / 'key.pem'}",
        ]
        locked = Locked(folder, address, member)
        # It is not there yet, as with two pods that start together.
        starting = threading.Thread(target=parts.start)
        starting.start()
        try:
            code, output = locked.tandem()
            starting.join()
            assert code == 0, output
            assert "user tandem made" in output
            assert "authentication is enabled now" in output
            yield locked
        finally:
            starting.join()
            parts.kill()
