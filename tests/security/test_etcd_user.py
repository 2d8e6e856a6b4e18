"""`tandem etcd-user`, against a real etcd with TLS: the operator's user owns one prefix, can do
all that locks need there, and nothing else."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest
import trustme
from aetcd import rpc

from security.locked_etcd import PREFIX, Locked, locked_etcd
from support.lock_requests import LONG_S, TABLE, get, owner, request
from tandem.errors import InvalidSpec, LocksUnavailable
from tandem.locks.etcd.store import EtcdLocks
from tandem.locks.etcd.users import PrefixOwner
from tandem.locks.rules import CommitLease, EntryState, Granted, Mode, Waiting


@pytest.fixture(scope="module")
def etcd() -> Iterator[Locked]:
    with locked_etcd() as locked:
        yield locked


def test_run_again_it_changes_nothing(etcd: Locked) -> None:
    assert etcd.tandem() == (0, "nothing to change\n")


def test_two_may_run_it_at_once(etcd: Locked) -> None:
    codes: list[int] = []
    runs = [
        threading.Thread(target=lambda: codes.append(_ensure(etcd, "another", PREFIX + "/other")))
        for _ in range(3)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert codes == [0, 0, 0]


def _ensure(etcd: Locked, user: str, prefix: str) -> int:
    from tandem.locks.etcd.client import EtcdAccess
    from tandem.locks.etcd.users import ensure

    access = EtcdAccess(
        (f"https://{etcd.endpoint}",), authority=etcd.folder / "ca.pem", password="root's word"
    )
    asyncio.run(ensure(access, PrefixOwner(user, "x", prefix)))
    return 0


def test_the_user_can_do_all_that_locks_need(etcd: Locked) -> None:
    one, other = EtcdLocks(etcd.settings(ttl_s=5)), EtcdLocks(etcd.settings())
    try:
        asked = request("a", Mode.REWRITE, "0")
        assert isinstance(one.acquire(asked), Granted)
        assert isinstance(other.acquire(request("b", Mode.REWRITE, "0")), Waiting)
        woken = threading.Event()
        end = other.watch(TABLE, "b", woken.set)
        # All but the last revision is forgotten by who may: watches and leases go on.
        [answer] = etcd.ask("root", "root's word", ("KV", "Compact", _compaction(etcd)))
        assert answer == "OK"
        one.release(TABLE, "a", owner("a"))  # ends a lease, and with it a key
        assert woken.wait(LONG_S)
        end()
        assert isinstance(other.acquire(request("b", Mode.REWRITE, "0")), Granted)
        assert other.enter_commit(TABLE, "b", owner("b")) is CommitLease.ENTERED
        # Kept alive for longer than its time, beside one that is killed with its etcd's tokens.
        assert isinstance(one.acquire(request("kept", Mode.REWRITE, "7")), Granted)
        etcd.member.restart()
        get(one, request("again", Mode.REWRITE, "8"))
        other.release(TABLE, "b", owner("b"))
        one.release(TABLE, "again", owner("again"))
        assert [e.state for e in one.entries(TABLE)] == [EntryState.HELD]
        one.release(TABLE, "kept", owner("kept"))
        assert other.entries(TABLE) == ()
    finally:
        one.close()
        other.close()


def _compaction(etcd: Locked) -> Any:
    async def revision() -> int:
        trust = grpc.ssl_channel_credentials((etcd.folder / "ca.pem").read_bytes())
        async with grpc.aio.secure_channel(etcd.endpoint, trust) as channel:
            asked = rpc.AuthenticateRequest(name="root", password="root's word")
            token = (await rpc.AuthStub(channel).Authenticate(asked)).token
            found = await rpc.KVStub(channel).Range(
                rpc.RangeRequest(key=b"/"), metadata=(("token", token),)
            )
        return int(found.header.revision)

    return rpc.CompactionRequest(revision=asyncio.run(revision()), physical=True)


FOREIGN = {
    "a neighbour's key": (b"/tandem/v2/x", b""),
    "a look-alike": (b"/tandem/v10", b""),
    "the prefix without its slash": (b"/tandem/v1", b""),
    "what follows": (b"/tandem/v10", b"/tandem/v2"),
    "one key more than ours": (b"/tandem/v1/", b"/tandem/v1\x30\x00"),
    "one key before ours": (b"/tandem/v1.", b"/tandem/v10"),
    "the API server's": (b"/registry/", b"/registry0"),
    "everything": (b"\0", b"\0"),
    "from ours on": (b"/tandem/v1/", b"\0"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_no_key_outside_the_prefix_is_read_written_or_watched(etcd: Locked, case: str) -> None:
    key, end = FOREIGN[case]
    watch = rpc.WatchRequest(create_request=rpc.WatchCreateRequest(key=key, range_end=end))
    hidden = rpc.TxnRequest(
        success=[
            rpc.RequestOp(
                request_txn=rpc.TxnRequest(
                    success=[rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=b"x"))]
                )
            )
        ]
    )
    compared = rpc.TxnRequest(
        compare=[
            rpc.Compare(
                result=rpc.Compare.GREATER,
                target=rpc.Compare.CREATE,
                key=key,
                range_end=end,
                create_revision=0,
            )
        ]
    )
    calls: list[tuple[str, str, Any]] = [
        ("KV", "Range", rpc.RangeRequest(key=key, range_end=end)),
        ("KV", "Range", rpc.RangeRequest(key=key, range_end=end, count_only=True)),
        ("KV", "DeleteRange", rpc.DeleteRangeRequest(key=key, range_end=end)),
        ("KV", "Txn", compared),
    ]
    if not key.startswith(b"/tandem/v1/"):  # a range may begin with a key of ours
        calls += [("KV", "Put", rpc.PutRequest(key=key, value=b"x")), ("KV", "Txn", hidden)]
    answers = etcd.ask("tandem", "ours", *calls)
    assert set(answers) == {"etcdserver: permission denied"}
    assert "etcdserver: permission denied" in watched(etcd, watch)


def watched(etcd: Locked, asked: Any) -> str:
    """Why etcd ends a watch; "" if it does not."""

    async def watch() -> str:
        trust = grpc.ssl_channel_credentials((etcd.folder / "ca.pem").read_bytes())
        async with grpc.aio.secure_channel(etcd.endpoint, trust) as channel:
            login = rpc.AuthenticateRequest(name="tandem", password="ours")
            token = (await rpc.AuthStub(channel).Authenticate(login)).token
            call = rpc.WatchStub(channel).Watch(metadata=(("token", token),), timeout=5)
            await call.write(asked)
            answer = await call.read()
            call.cancel()
            return str(answer.cancel_reason)

    return asyncio.run(watch())


ADMINISTRATION = [
    ("Auth", "UserList", rpc.AuthUserListRequest()),
    ("Auth", "UserGet", rpc.AuthUserGetRequest(name="root")),
    ("Auth", "UserAdd", rpc.AuthUserAddRequest(name="mine", password="x")),
    ("Auth", "UserDelete", rpc.AuthUserDeleteRequest(name="another")),
    ("Auth", "UserChangePassword", rpc.AuthUserChangePasswordRequest(name="root", password="x")),
    ("Auth", "UserGrantRole", rpc.AuthUserGrantRoleRequest(user="tandem", role="root")),
    ("Auth", "RoleList", rpc.AuthRoleListRequest()),
    ("Auth", "RoleGet", rpc.AuthRoleGetRequest(role="another")),
    ("Auth", "RoleAdd", rpc.AuthRoleAddRequest(name="mine")),
    (
        "Auth",
        "RoleGrantPermission",
        rpc.AuthRoleGrantPermissionRequest(
            name="tandem", perm=rpc.Permission(permType=2, key=b"\0", range_end=b"\0")
        ),
    ),
    ("Auth", "AuthDisable", rpc.AuthDisableRequest()),
    ("Maintenance", "Snapshot", rpc.SnapshotRequest()),
    ("Maintenance", "Defragment", rpc.DefragmentRequest()),
    ("Maintenance", "Hash", rpc.HashRequest()),
    ("Maintenance", "HashKV", rpc.HashKVRequest()),
    ("Maintenance", "MoveLeader", rpc.MoveLeaderRequest(targetID=1)),
    ("KV", "Compact", rpc.CompactionRequest(revision=1)),
    ("Cluster", "MemberRemove", rpc.MemberRemoveRequest(ID=1)),
]


def test_the_user_has_no_administrative_rights(etcd: Locked) -> None:
    answers = etcd.ask("tandem", "ours", *ADMINISTRATION)
    output = {
        method: answer for (_, method, _), answer in zip(ADMINISTRATION, answers, strict=True)
    }
    assert {m: a for m, a in output.items() if "permission denied" not in a} == {}


def test_the_lease_of_a_foreign_key_is_neither_revoked_nor_read(etcd: Locked) -> None:
    foreign = ("KV", "Put", rpc.PutRequest(key=b"/other", value=b"v", lease=77))
    granted = ("Lease", "LeaseGrant", rpc.LeaseGrantRequest(TTL=60, ID=77))
    assert etcd.ask("root", "root's word", granted, foreign) == ["OK", "OK"]
    answers = etcd.ask(
        "tandem",
        "ours",
        ("Lease", "LeaseRevoke", rpc.LeaseRevokeRequest(ID=77)),
        ("Lease", "LeaseTimeToLive", rpc.LeaseTimeToLiveRequest(ID=77, keys=True)),
        ("Lease", "LeaseLeases", rpc.LeaseLeasesRequest()),
    )
    assert answers == ["etcdserver: permission denied"] * 3


def test_without_a_user_or_without_tls_there_is_no_access(etcd: Locked) -> None:
    for wrong in (
        etcd.settings(password="root's word"),
        etcd.settings(user=""),
        etcd.settings(user="root", password="ours"),
    ):
        locks = EtcdLocks(wrong)
        with pytest.raises(LocksUnavailable, match="the user") as refused:
            locks.acquire(request("a", Mode.REWRITE, "0"))
        assert "root's word" not in str(refused.value)
        locks.close()
    ours = ("KV", "Range", rpc.RangeRequest(key=PREFIX.encode() + b"/x"))
    assert etcd.ask("", "", ours) == ["etcdserver: user name is empty"]
    plain = EtcdLocks(etcd.settings(endpoints=(etcd.endpoint,), ca=None, timeout_s=0.5))
    with pytest.raises(LocksUnavailable):
        plain.entries(TABLE)
    plain.close()
    # Another certificate authority.
    trustme.CA().cert_pem.write_to_path(etcd.folder / "stranger.pem")
    fooled = EtcdLocks(etcd.settings(ca=etcd.folder / "stranger.pem", timeout_s=0.5))
    with pytest.raises(LocksUnavailable):
        fooled.entries(TABLE)
    fooled.close()
    with pytest.raises(ssl.SSLCertVerificationError), _tls(etcd, trustme.CA()):
        pass


def _tls(etcd: Locked, authority: trustme.CA) -> ssl.SSLSocket:
    import socket

    context = ssl.create_default_context()
    authority.configure_trust(context)
    host, port = etcd.endpoint.split(":")
    return context.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)


def test_roots_password_is_not_guessed_and_the_users_is_renewed(etcd: Locked) -> None:
    code, output = etcd.tandem(root="wrong")
    assert code == 1
    assert "root has a different password" in output
    secret = secrets.token_hex(8)
    code, output = etcd.tandem(user=secret)
    assert (code, output) == (0, "user tandem has the given password\n")
    locks = EtcdLocks(etcd.settings(password=secret))
    assert locks.entries(TABLE) == ()
    locks.close()
    assert etcd.tandem()[0] == 0


def test_rights_that_were_added_are_revoked(etcd: Locked) -> None:
    more = rpc.Permission(permType=2, key=b"/registry/", range_end=b"/registry0")
    root = partial(etcd.ask, "root", "root's word")
    assert (
        root(
            (
                "Auth",
                "RoleGrantPermission",
                rpc.AuthRoleGrantPermissionRequest(name="tandem", perm=more),
            ),
            ("Auth", "RoleAdd", rpc.AuthRoleAddRequest(name="more")),
            ("Auth", "UserGrantRole", rpc.AuthUserGrantRoleRequest(user="tandem", role="more")),
            ("Auth", "UserGrantRole", rpc.AuthUserGrantRoleRequest(user="tandem", role="root")),
        )
        == ["OK"] * 4
    )
    read = ("KV", "Range", rpc.RangeRequest(key=b"/registry/secrets"))
    assert etcd.ask("tandem", "ours", read) == ["OK"]
    code, output = etcd.tandem()
    assert code == 0
    assert output.count("no longer has") == 3
    assert etcd.ask("tandem", "ours", read) == ["etcdserver: permission denied"]


def test_an_etcd_that_lost_its_users_is_set_up_again_and_the_error_says_so(etcd: Locked) -> None:
    runs = EtcdLocks(etcd.settings(timeout_s=4.0))
    held = request("runs", Mode.REWRITE, "0")
    assert isinstance(runs.acquire(held), Granted)
    etcd.member.wipe()
    etcd.member.start()
    fresh = EtcdLocks(etcd.settings())
    with pytest.raises(LocksUnavailable, match="tandem etcd-user") as refused:
        fresh.entries(TABLE)
    assert "ours" not in str(refused.value)
    code, output = etcd.tandem()
    assert code == 0
    assert "authentication is enabled now" in output
    assert fresh.entries(TABLE) == ()
    # Who has gone on all the time gets a new token, and its lock again: with the old one, etcd
    # would be silent until it has counted as far as when it gave it.
    assert isinstance(runs.acquire(held), Granted)
    assert len(fresh.entries(TABLE)) == 1
    runs.close()
    fresh.close()


@pytest.mark.parametrize(
    ("user", "password", "prefix"),
    [
        ("root", "x", PREFIX),
        ("", "x", PREFIX),
        ("tandem", "", PREFIX),
        ("tandem", "x", ""),
        ("tandem", "x", "/"),
        ("tandem", "x", "//"),
        ("tandem", "x", "tandem"),
    ],
)
def test_excessive_rights_are_refused(user: str, password: str, prefix: str) -> None:
    with pytest.raises(InvalidSpec):
        PrefixOwner(user, password, prefix)
