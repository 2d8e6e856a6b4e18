"""`tandem etcd-user`: sets up an etcd for the operator, with a user that owns one prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tandem.cli.commands.operator_options import FILE, EtcdCa, EtcdCertificate, EtcdKey, option
from tandem.cli.errors import errors_to_exit, say


def etcd_user(
    root_password_file: Annotated[
        Path,
        option("--root-password-file", "File with the password of etcd's user root.", **FILE),
    ],
    etcd_password_file: Annotated[
        Path, option("--etcd-password-file", "File with the password of the user.", **FILE)
    ],
    etcd_endpoints: Annotated[
        list[str],
        option("--etcd-endpoint", "host:port of etcd, https://host:port for TLS; repeatable."),
    ],
    etcd_user: Annotated[
        str, option("--etcd-user", "The user that the operator connects as.")
    ] = "tandem",
    etcd_prefix: Annotated[
        str, option("--etcd-prefix", "The prefix of all keys that the user may read and write.")
    ] = "/tandem/v1",
    etcd_ca: EtcdCa = None,
    etcd_certificate: EtcdCertificate = None,
    etcd_key: EtcdKey = None,
    wait: Annotated[
        float, option("--wait", "Seconds to wait for an etcd that does not answer yet.", min=0)
    ] = 60.0,
) -> None:
    """Create the user of etcd that the operator connects as.

    It enables authentication in etcd. The user owns one prefix: it can neither read nor write any
    other key. Running the command again changes nothing. It needs root's password; the operator
    itself does not.
    """
    with errors_to_exit():
        import asyncio

        from tandem.locks.etcd.client import EtcdAccess
        from tandem.locks.etcd.users import PrefixOwner, ensure

        owner = PrefixOwner(etcd_user, etcd_password_file.read_text().strip(), etcd_prefix)
        access = EtcdAccess(
            tuple(etcd_endpoints),
            authority=etcd_ca,
            certificate=etcd_certificate,
            key=etcd_key,
            password=root_password_file.read_text().strip(),
        )
        changed = asyncio.run(ensure(access, owner, wait_s=wait))
        for line in changed or ["nothing to change"]:
            say(line)
