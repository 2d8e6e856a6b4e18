"""Executors are killed and stopped while callers ask: every answer is right, and none waits longer
than the deadline of its call. Processes of their own, over real Flight."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
import trustme

from index.askers import asked_by
from index.spread_index import BEAT_S, Lake, Spread, spread, until
from tandem.errors import AccessDenied, InvalidSpec, Unreachable
from tandem.index.server.executor import REGISTRY_CALL, SlotNews, body
from tandem.index.server.registration import (
    RemoteExecutor,
    SlotSettings,
    TlsFolder,
    connected,
    new_key,
    own_address,
    run_executor,
)

WHERE = {"id = 7": 1, "id < 1234": 1234, "key = 'k77'": 1, "id < 0": 0}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("failures"), [2, 2, 2, 1])


@pytest.mark.matrix
def test_X6_executors_are_killed_and_stopped_while_four_ask(lake: Lake, tmp_path: Path) -> None:
    with spread({"lake": lake.location}, deadline_s=2, budget_s=1, left_out_s=1) as server:
        server.start_processes(tmp_path, 0, 1, 2)
        assert server.files() == 1
        with asked_by([server.index() for _ in range(4)], WHERE):
            server.processes[0].send_signal(signal.SIGKILL)
            until(lambda: 0 not in server.live, "a dead executor is counted on")
            assert 0 not in server.owners.values()
            until(lambda: server.files() == 1, "its shards are not served by others")

            server.processes[1].send_signal(signal.SIGSTOP)
            until(lambda: 1 not in server.live, "a stopped executor is counted on")
            until(lambda: server.files() == 1, "its shards are not served by others")
            assert set(server.owners.values()) <= {0, 2}

            server.processes[1].send_signal(signal.SIGCONT)
            server.wait_for(1)
            for slot in (1, 2):
                server.processes[slot].send_signal(signal.SIGKILL)
            until(lambda: not server.live, "dead executors are counted on")
            assert server.files() == 7
        assert not server.coordinator.refused


def test_I49_a_silent_executor_is_dead(lake: Lake) -> None:
    now = [0.0]
    with spread({"lake": lake.location}) as server:
        server.coordinator.registry._now = lambda: now[0]
        server.start(0, 1)
        server.files()
        server.stop(0)
        now[0] = 5
        until(lambda: server.live == {1}, "one that has left is counted on")
        server.start(0)
        # Its beats come too late for this clock.
        executor = server.executor(0)
        server.coordinator.registry._live[executor].heard = -1_000.0
        server.coordinator.registry.beat = lambda *_: True  # type: ignore[method-assign]
        assert server.files() == 1
        assert server.live == {1}
        assert set(server.owners.values()) == {1}


def test_an_executor_ends_without_its_coordinator(lake: Lake) -> None:
    with spread({"lake": lake.location}) as server:
        thread = threading.Thread(
            target=run_executor,
            args=(server.settings, 0, threading.Event()),
            kwargs={"beat_s": BEAT_S, "give_up_s": 0.3},
        )
        thread.start()
        server.wait_for(0)
        server.registry.shutdown()
        thread.join()
        assert server.files() == 7


def test_one_that_was_forgotten_joins_again_without_load(lake: Lake) -> None:
    with spread({"lake": lake.location}, 2) as server:
        server.files()
        assert server.shown()
        executor = server.executor(0)
        server.coordinator.registry.leave(executor)
        until(lambda: 0 in server.live, "it does not join again")
        assert 0 not in server.owners.values()
        until(lambda: not server.coordinator.shown()[executor].shards, "it still holds something")
        assert server.files() == 1


def test_a_process_that_takes_a_slot_replaces_the_one_before(lake: Lake) -> None:
    with spread({"lake": lake.location}, 1) as server:
        first = server.executor(0)
        assert server.files() == 1
        assert set(server.owners.values()) == {0}
        thread, stop = server.threads.pop(0)
        stop.set()
        server.start(0)
        thread.join()
        until(
            lambda: [each.slot for each in server.coordinator.registry.live] == [0],
            "two have one slot",
        )
        until(lambda: server.files() == 1, "its shards are not served")
        assert first not in server.coordinator.registry.live


def news(
    slot: int = 0, id_: str = "my_host_1.rack_2", endpoint: str = "", *, leaves: bool = False
) -> bytes:
    return body(SlotNews(slot=slot, id=id_, endpoint=endpoint, leaves=leaves))


def endpoint_of(server: Spread, slot: int) -> str:
    reached = server.coordinator.registry.live[server.executor(slot)]
    assert isinstance(reached, RemoteExecutor)
    return reached._connection.endpoint


def test_without_the_key_nobody_joins(lake: Lake) -> None:
    with spread({"lake": lake.location}) as server:
        endpoint = f"grpc://127.0.0.1:{server.registry.port}"
        for key in ("", "wrong", server.key[:-1]):
            with pytest.raises(AccessDenied):
                connected(endpoint, key, None).ask(REGISTRY_CALL, news())
        server.start(0)
        with pytest.raises(AccessDenied):
            connected(endpoint_of(server, 0), new_key(), None).ask("ShowCache", b"{}")
    assert server.key not in repr(server.settings)


def test_executors_are_encrypted_in_the_name_of_the_service(lake: Lake, tmp_path: Path) -> None:
    authority = trustme.CA()
    mine = authority.issue_cert("lake-index.team-a.svc")
    (tmp_path / "tls.crt").write_bytes(mine.cert_chain_pems[0].bytes())
    (tmp_path / "tls.key").write_bytes(mine.private_key_pem.bytes())
    (tmp_path / "ca.crt").write_bytes(authority.cert_pem.bytes())
    tls = TlsFolder(tmp_path, "lake-index.team-a.svc")
    with spread({"lake": lake.location}, 1, tls=tls) as server:
        assert server.files() == 1
        endpoint = f"grpc+tls://127.0.0.1:{server.registry.port}"
        with pytest.raises(Unreachable):
            connected(endpoint, server.key, TlsFolder(tmp_path, "other")).ask("Beat", news())
        with pytest.raises(InvalidSpec, match="endpoint"):
            connected(endpoint, server.key, None)


def test_names_of_hosts_are_opaque(lake: Lake) -> None:
    """CarbonData parsed them: `_` in a host's name lost its segments."""
    with spread({"lake": lake.location}, 1) as server:
        endpoint = endpoint_of(server, 0)
        registry = connected(f"grpc://127.0.0.1:{server.registry.port}", server.key, None)
        for id_ in ("my_host_1.rack_2", "[::1]", "a b/c?d#e", "\N{SNOWMAN}"):
            for known in (False, True):
                message, _ = registry.ask(REGISTRY_CALL, news(1, id_, endpoint))
                assert message == {"known": known}
            assert server.executor(1).id == id_
            assert server.files() == 1
        registry.ask(REGISTRY_CALL, news(1, "\N{SNOWMAN}", leaves=True))
        assert server.live == {0}
        assert server.files() == 1
    assert own_address("grpc://localhost:80") in ("127.0.0.1", "[::1]")
    assert own_address("grpc+tls://127.0.0.1:80") == "127.0.0.1"


@pytest.mark.parametrize(
    ("call", "data"),
    [
        ("Beat", b"{}"), ("Beat", news(endpoint="http://127.0.0.1:1")), ("Beat", news()),
        ("Beat", b'{"slot": -1, "id": "x"}'), ("Beat", b'{"slot": 0, "id": ""}'),
        ("Beat", b'{"slot": 0, "id": "x", "sizes": [{"tableId": "t", "shard": "s", "bytes": -1}]}'),
        ("Drop", news()),
    ],
)  # fmt: skip
def test_news_that_are_none_are_refused(lake: Lake, call: str, data: bytes) -> None:
    with spread({"lake": lake.location}) as server:
        registry = connected(f"grpc://127.0.0.1:{server.registry.port}", server.key, None)
        with pytest.raises(InvalidSpec):
            registry.ask(call, data)
        message, _ = registry.ask(REGISTRY_CALL, news(leaves=True))
        assert message == {"known": False}
        assert not server.live


def test_settings_hold_no_key_in_their_text() -> None:
    settings = SlotSettings("grpc://127.0.0.1:1", "secret", {})
    assert "secret" not in repr(settings)
