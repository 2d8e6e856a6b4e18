"""Who may ask a server, over real Flight: a caller without the right learns nothing, not even
whether a table exists; no caller can take all of it; certificates are checked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
import trustme
from deltalake import write_deltalake

from index.clock import Clock
from tandem.errors import AccessDenied, InvalidSpec, ReferenceNotFound, Unreachable
from tandem.index import EVERYTHING, TableIndex, open_index
from tandem.index.server import messages as messages_
from tandem.index.server.access import (
    KEPT_S,
    CallerCheck,
    ReviewedTokens,
    SharedToken,
    TokenOwner,
)
from tandem.index.server.calls import AnswerFiles, CallerTurns
from tandem.index.server.client import (
    ENDPOINT_VARIABLE,
    FOLDER_VARIABLE,
    ChainedIndex,
    RemoteIndex,
    index_of,
)
from tandem.index.server.messages import AccessConfig, ServerConfig, TableConfig
from tandem.index.server.service import IndexService
from tandem.index.server.transport import Connection, FlightServer, Tls
from tandem.spark.jobs import index_server as program
from tandem.spec import LakeTable, parse
from tandem.storage import open_store

TOKEN = "a token that callers present"


class Cluster:
    """A reviewer that answers what a test says, and counts."""

    def __init__(self) -> None:
        self.users = {each: f"system:serviceaccount:a:{each}" for each in ("good", "weak", "one")}
        self.rights = {("good", ""), ("one", "t")}
        self.asked: list[str] = []
        self.is_away = False

    def owner(self, token: str) -> TokenOwner | None:
        self._note(token)
        return TokenOwner(self.users[token]) if token in self.users else None

    def may_ask(self, owner: TokenOwner, table: str) -> bool:
        account = owner.user.rpartition(":")[2]
        self._note(f"{account} {table}")
        return (account, table) in self.rights

    def _note(self, question: str) -> None:
        self.asked.append(question)
        if self.is_away:
            raise Unreachable("the cluster does not say who the caller is")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_deltalake(tmp_path / "t", pa.table({"id": range(10)}))
    return tmp_path / "t"


@contextmanager
def served(root: Path, access: CallerCheck, tls: Tls | None = None) -> Iterator[str]:
    service = IndexService({"t": lambda: open_index(str(root))}, AnswerFiles(None))
    with FlightServer(service, "127.0.0.1", 0, access=access, tls=tls) as server:
        yield f"{'grpc' if tls is None else 'grpc+tls'}://127.0.0.1:{server.port}"


def ask(
    endpoint: str, root: Path, token: str = "", table: str = "t", tls: Tls | None = None
) -> int:
    connection = Connection(endpoint, token=token, tls=tls)
    return RemoteIndex(connection, table, open_store(root.as_uri())).count(EVERYTHING)


def refusal(endpoint: str, root: Path, token: str, table: str) -> str:
    with pytest.raises(AccessDenied) as caught:
        ask(endpoint, root, token, table)
    return str(caught.value)


def test_without_the_right_no_table_exists(root: Path) -> None:
    """One error for every token and every table, and the table is not even looked up."""
    cluster = Cluster()
    with served(root, ReviewedTokens(cluster)) as endpoint:
        assert ask(endpoint, root, "good") == 10
        assert ask(endpoint, root, "one") == 10
        tries = [(token, table) for token in ("weak", "other", "") for table in ("t", "none")]
        tries += [("one", "none"), ("one", "T"), ("one", "")]
        said = {refusal(endpoint, root, token, table) for token, table in tries}
    assert len(said) == 1
    assert "none" not in said.pop().replace("none of", "")


def test_a_review_is_kept_for_a_minute_and_no_longer() -> None:
    cluster, clock = Cluster(), Clock()
    access = ReviewedTokens(cluster, clock)
    assert access.caller("Bearer good") == access.caller("Bearer good")
    for table in ("t", "other", "", "t"):
        access.require("Bearer good", table)
    assert cluster.asked == ["good", "good "]
    cluster.rights.clear()
    clock.now = KEPT_S - 1
    access.require("Bearer good", "t")
    clock.now = KEPT_S + 1
    with pytest.raises(AccessDenied):
        access.require("Bearer good", "t")
    assert cluster.asked == ["good", "good ", "good", "good ", "good t"]


def test_the_right_on_one_table_is_that_on_no_other() -> None:
    cluster = Cluster()
    access = ReviewedTokens(cluster)
    access.require("Bearer one", "t")
    for table in ("", "u", "t/", "T", "t" * 254, "../t", "ä"):
        with pytest.raises(AccessDenied, match="no valid token"):
            access.require("Bearer one", table)
    # What cannot be the name of a table is no question to the cluster.
    assert cluster.asked == ["one", "one ", "one t", "one u"]


def test_the_table_that_is_reviewed_is_the_one_that_is_answered(root: Path) -> None:
    """A name that is there twice, or spelled with escapes, gets no caller past the review."""
    cluster = Cluster()
    with served(root, ReviewedTokens(cluster)) as endpoint:
        cluster.rights.add(("one", "allowed"))
        cluster.rights.discard(("one", "t"))
        connection = Connection(endpoint, token="one")
        for body in (
            b'{"table": "allowed", "table": "t"}',
            b'{"table": "t", "table": "allowed"}',
            rb'{"t\u0061ble": "t"}',
            b'{"table": "t", "where": NaN}',
            b'\xef\xbb\xbf{"table": "t"}',
        ):
            with pytest.raises((AccessDenied, ReferenceNotFound, InvalidSpec)) as caught:
                connection.ask("GetCount", body)
            if isinstance(caught.value, ReferenceNotFound):
                assert caught.value.resource == "allowed"
        # Calls about all tables are for those who may read all.
        for call in ("ShowCache", "InvalidateCache"):
            with pytest.raises(AccessDenied):
                connection.ask(call, b"{}")
        cluster.rights.add(("one", "t"))
    with served(root, ReviewedTokens(cluster)) as endpoint:
        message, _ = Connection(endpoint, token="one").ask("ShowCache", b'{"table": "t"}')
        assert [each["table"] for each in message["tables"]] == ["t"]


@pytest.mark.parametrize("header", ["", "good", "Basic good", "Bearer ", "bearer"])
def test_a_header_that_is_no_token_is_not_reviewed(header: str) -> None:
    cluster = Cluster()
    with pytest.raises(AccessDenied):
        ReviewedTokens(cluster).caller(header)
    assert cluster.asked == []


def test_what_is_kept_of_tokens_is_bounded_and_no_token() -> None:
    access = ReviewedTokens(Cluster())
    for number in range(10_100):
        with pytest.raises(AccessDenied):
            access.caller(f"Bearer made-up-{number}")
    for number in range(10_100):
        with pytest.raises(AccessDenied):
            access.require("Bearer weak", f"made-up-{number}")
    for kept in (access._owners, access._rights):
        assert len(kept) == 10_000
        assert "Bearer" not in str(list(kept._values))
    assert "made-up" not in str(list(access._owners._values))


def test_while_the_cluster_is_away_no_caller_is_let_in_and_readers_go_on(root: Path) -> None:
    cluster = Cluster()
    with served(root, ReviewedTokens(cluster)) as endpoint:
        cluster.is_away = True
        with pytest.raises(Unreachable):
            ask(endpoint, root, "good")
        remote = RemoteIndex(Connection(endpoint, token="good"), "t", open_store(root.as_uri()))
        assert ChainedIndex(remote, lambda: open_index(str(root))).count() == 10
        cluster.is_away = False
        assert ask(endpoint, root, "good") == 10


def test_a_shared_token_is_long_enough_and_compared_whole() -> None:
    with pytest.raises(AccessDenied, match=r"too short.*15 characters.*at least 16"):
        SharedToken("x" * 15)
    access = SharedToken("x" * 16)
    assert access.caller(f"Bearer {'x' * 16}")
    for wrong in ("", "Bearer", f"Bearer {'x' * 17}", f"bearer {'x' * 16}", "Bearer ä", "x" * 16):
        with pytest.raises(AccessDenied):
            access.caller(wrong)


def test_one_caller_cannot_have_all_calls() -> None:
    turns = CallerTurns(2, wait_s=0)
    with turns.turn("a"), turns.turn("a"):
        with pytest.raises(Unreachable, match="too much at once"), turns.turn("a"):
            pass
        with turns.turn("b"):
            pass
    with turns.turn("a"):
        pass
    assert not turns._taken
    assert not turns._waiting


def test_calls_beyond_the_limit_are_refused_by_the_server(root: Path) -> None:
    """While others of the same caller are not answered; afterwards it is served again."""
    hold, held = threading.Event(), threading.Semaphore(0)

    def slowly() -> TableIndex:
        held.release()
        assert hold.wait(60)
        return open_index(str(root))

    service = IndexService({"t": slowly}, AnswerFiles(None))
    with FlightServer(service, "127.0.0.1", 0, access=SharedToken(TOKEN)) as server:
        server._calls = CallerTurns(2)
        endpoint = f"grpc://127.0.0.1:{server.port}"
        store = open_store(root.as_uri())
        patient = Connection(endpoint, token=TOKEN, timeout_s=60)
        counts: list[int] = []
        askers = [
            threading.Thread(
                target=lambda: counts.append(RemoteIndex(patient, "t", store).count(EVERYTHING))
            )
            for _ in range(2)
        ]
        for asker in askers:
            asker.start()
        for _ in askers:
            assert held.acquire(timeout=60)
        with pytest.raises(Unreachable, match="too much at once"):
            ask(endpoint, root, TOKEN)
        hold.set()
        for asker in askers:
            asker.join(60)
        assert counts == [10, 10]
        assert ask(endpoint, root, TOKEN) == 10


def test_one_callers_answers_cannot_fill_the_disk(tmp_path: Path) -> None:
    table = pa.table({"x": range(1_000)})
    parts = AnswerFiles(
        tmp_path / "p", inline_limit=10, limit_bytes=4 * table.nbytes, caller_bytes=2 * table.nbytes
    )
    tickets = [parts.keep(table, "a") for _ in range(2)]
    assert all(tickets)
    with pytest.raises(Unreachable, match="too many answers wait"):
        parts.keep(table, "a")
    assert parts.keep(table, "b")
    assert parts.keep(table, "c")
    # Now the disk is full: what comes next is sent at once.
    assert parts.keep(table, "d") is None
    parts.fetch(tickets[0] or "", "a")
    assert parts.keep(table, "d")


def certificate(authority: trustme.CA, *names: str, until: datetime | None = None) -> Tls:
    made = authority.issue_cert(*names, not_after=until)
    chain = b"".join(blob.bytes() for blob in made.cert_chain_pems)
    return Tls(chain, made.private_key_pem.bytes())


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("right", ""),
        ("other name", "not in peer certificate"),
        ("out of date", "certificate has expired"),
        ("other authority", "issuer certificate"),
    ],
)
def test_a_certificate_counts_only_for_its_name_time_and_authority(
    root: Path, what: str, found: str
) -> None:
    authority = trustme.CA()
    past = datetime.now(UTC) - timedelta(days=1)
    tls = certificate(
        authority,
        "other.svc" if what == "other name" else "127.0.0.1",
        until=past if what == "out of date" else None,
    )
    trusted = trustme.CA() if what == "other authority" else authority
    client = Tls(trusted.cert_pem.bytes())
    with served(root, SharedToken(TOKEN), tls) as endpoint:
        if what == "right":
            assert ask(endpoint, root, TOKEN, tls=client) == 10
            return
        with pytest.raises(Unreachable, match="is not trusted") as refused:
            ask(endpoint, root, TOKEN, tls=client)
        assert refused.value.field == "certificate"
        assert found in refused.value.found
        assert "ca.crt" in refused.value.remedy
        remote = RemoteIndex(
            Connection(endpoint, token=TOKEN, tls=client), "t", open_store(root.as_uri())
        )
        assert ChainedIndex(remote, lambda: open_index(str(root))).count() == 10


# The program


def settings(root: Path, **access: str) -> ServerConfig:
    return ServerConfig(
        tables={"t": TableConfig(location=root.as_uri())},
        access=AccessConfig.model_validate({"namespace": "n", **access}),
        memory=1 << 30,
        disk=1 << 30,
        shard_size=1 << 20,
        poll_s=0.05,
    )


@contextmanager
def running(config: ServerConfig, secrets: Path) -> Iterator[str]:
    """The program in a thread; its address."""
    stop, ready, endpoint = threading.Event(), threading.Event(), [""]

    def serving(address: str) -> None:
        endpoint[0] = address
        ready.set()

    environ = {
        messages_.SECRETS_VARIABLE: str(secrets),
        messages_.LISTEN_VARIABLE: "127.0.0.1:0",
    }
    thread = threading.Thread(target=lambda: program.serve(config, stop, environ, ready=serving))
    thread.start()
    try:
        assert ready.wait(60)
        yield endpoint[0]
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def secret(folder: Path, name: str, **values: bytes) -> None:
    (folder / name).mkdir(parents=True)
    for key, value in values.items():
        (folder / name / key.replace("_", ".")).write_bytes(value)


def test_the_program_serves_with_what_its_secrets_say(root: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = certificate(authority, "127.0.0.1")
    secret(tmp_path / "s", "tls", tls_crt=tls.certificate, tls_key=tls.key)
    secret(tmp_path / "s", "token", token=TOKEN.encode() + b"\n")
    config = settings(root, mode="SharedToken", tls="tls", token="token")
    client = Tls(authority.cert_pem.bytes())
    with running(config, tmp_path / "s") as endpoint:
        assert endpoint.startswith("grpc+tls://")
        assert ask(endpoint, root, TOKEN, tls=client) == 10
        with pytest.raises(AccessDenied):
            ask(endpoint, root, "another token of callers", tls=client)


def test_the_program_follows_what_it_holds_without_being_asked(root: Path, tmp_path: Path) -> None:
    config = settings(root, mode="Plaintext")
    pause = threading.Event()
    with running(config, tmp_path) as endpoint:
        connection = Connection(endpoint)
        write_deltalake(root, pa.table({"id": range(5)}), mode="append")
        for _ in range(600):
            message, _ = connection.ask("ShowCache", b"{}")
            if message["tables"][0]["version"] == 1:
                break
            pause.wait(0.1)
        assert message["tables"][0]["version"] == 1
        # Following it is no question about it.
        assert message["tables"][0]["questions"] == 0


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ({"mode": "SharedToken", "tls": "none", "token": "token"}, "Secret/none.*tls.crt"),
        ({"mode": "SharedToken", "tls": "tls", "token": "none"}, "Secret/none.*the key token"),
        ({"mode": "SharedToken", "tls": "tls", "token": "short"}, "too short"),
        ({"mode": "SharedToken", "tls": "torn", "token": "token"}, "cannot listen"),
        ({"mode": "ServiceAccount", "tls": "tls"}, "no service account"),
    ],
)
def test_a_program_that_cannot_serve_ends_with_the_cause(
    root: Path, tmp_path: Path, access: dict[str, str], words: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tls = certificate(trustme.CA(), "127.0.0.1")
    secret(tmp_path, "tls", tls_crt=tls.certificate, tls_key=tls.key)
    secret(tmp_path, "torn", tls_crt=tls.certificate[:40], tls_key=tls.key)
    secret(tmp_path, "token", token=TOKEN.encode())
    secret(tmp_path, "short", token=b"hunter2")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    environ = {messages_.SECRETS_VARIABLE: str(tmp_path), messages_.LISTEN_VARIABLE: "127.0.0.1:0"}
    with pytest.raises((InvalidSpec, AccessDenied, Unreachable), match=words) as caught:
        program.serve(settings(root, **access), threading.Event(), environ)
    assert "hunter2" not in str(caught.value) + capsys.readouterr().err


def test_a_program_that_cannot_listen_says_where(root: Path, tmp_path: Path) -> None:
    config = settings(root, mode="Plaintext")
    with running(config, tmp_path) as endpoint:
        environ = {messages_.LISTEN_VARIABLE: endpoint.removeprefix("grpc://")}
        with pytest.raises(Unreachable, match="cannot listen") as caught:
            program.serve(config, threading.Event(), environ)
    assert endpoint.removeprefix("grpc://") in str(caught.value)


def test_a_table_whose_secret_is_not_mounted_fails_alone(root: Path, tmp_path: Path) -> None:
    config = settings(root, mode="Plaintext")
    bad = TableConfig(location=root.as_uri(), secret="gone")
    config = config.model_copy(update={"tables": {**config.tables, "bad": bad}})
    with running(config, tmp_path) as endpoint:
        assert ask(endpoint, root) == 10
        with pytest.raises(InvalidSpec, match=r"Secret/gone.*not mounted"):
            ask(endpoint, root, table="bad")


def test_the_request_is_closed_and_comes_back_whole(root: Path) -> None:
    config = settings(root, mode="Plaintext")
    tables = {f"t{n}": TableConfig(location=f"file:///$(SECRET)/ü{n}") for n in range(1_000)}
    config = config.model_copy(update={"tables": tables})
    pieces = messages_.written(config)
    assert len(pieces) == 1 or all(len(piece) < 128 * 1024 for piece in pieces)
    assert "$" not in "".join(pieces)
    assert messages_.read(pieces) == config
    for wrong in ("", "{", "[]", '{"api": "v2"}', pieces[0].replace('"poll', '"pull')):
        with pytest.raises(InvalidSpec, match="one version"):
            messages_.read([wrong])


def test_flight_itself_refuses_a_caller_without_the_token(root: Path) -> None:
    """Also for what no question is needed for."""
    with served(root, SharedToken(TOKEN)) as endpoint:
        client = flight.FlightClient(endpoint)
        for call in (
            lambda: list(client.list_flights()),
            lambda: list(client.list_actions()),
            lambda: client.do_get(flight.Ticket(b"x")).read_all(),
            lambda: client.get_flight_info(flight.FlightDescriptor.for_path("t")),
        ):
            with pytest.raises(flight.FlightUnauthenticatedError):
                call()


# A LakeTable that names its server


def lake_table(root: Path, server: str | None = "lake") -> LakeTable:
    found = parse(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "LakeTable",
            "metadata": {"name": "t", "namespace": "n"},
            "spec": {"location": root.as_uri(), "index": {"server": server}},
        }
    )
    assert isinstance(found, LakeTable)
    return found


def test_readers_of_a_lake_table_ask_the_server_that_it_names(root: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = certificate(authority, "127.0.0.1")
    folder = tmp_path / "access"
    folder.mkdir()
    (folder / "token").write_text(TOKEN)
    (folder / "ca.crt").write_bytes(authority.cert_pem.bytes())
    asked: list[str] = []

    class Noted(SharedToken):
        def caller(self, authorization: str) -> str:
            asked.append(authorization)
            return super().caller(authorization)

    with served(root, Noted(TOKEN), tls) as endpoint:
        environ = {ENDPOINT_VARIABLE: endpoint, FOLDER_VARIABLE: str(folder)}
        assert index_of(lake_table(root), environ=environ).count(EVERYTHING) == 10
        assert asked == [f"Bearer {TOKEN}"]
        assert index_of(lake_table(root, None), environ=environ).count(EVERYTHING) == 10
        assert len(asked) == 1
        # Whom it refuses reads with own credentials.
        (folder / "token").write_text("another token of callers")
        assert index_of(lake_table(root), environ=environ).count(EVERYTHING) == 10
        assert len(asked) == 2
    # It is away, and outside of a cluster there is none.
    assert index_of(lake_table(root), environ=environ).count(EVERYTHING) == 10
    assert isinstance(index_of(lake_table(root), environ={}), TableIndex)


def test_where_a_server_answers_follows_from_names(root: Path) -> None:
    found = index_of(lake_table(root), environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert isinstance(found, ChainedIndex)
    assert found._remote._connection.endpoint == "grpc+tls://lake-index.n.svc:8815"
