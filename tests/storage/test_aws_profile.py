"""Profiles of the AWS configuration files: what they give, and what is left to AWS's own tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.lake.s3 import S3Server
from tandem.errors import InvalidSpec
from tandem.storage import open_store
from tandem.storage.options import settings

CONFIG = """
[default]
region = eu-west-1

[profile keys]
region = eu-central-1
endpoint_url = https://minio.example:9000

[profile web]
role_arn = arn:aws:iam::1:role/lake
web_identity_token_file = /token

[profile sso]
sso_session = corp
region = eu-west-1

[profile assumed]
role_arn = arn:aws:iam::1:role/lake
source_profile = keys

[profile program]
credential_process = /bin/echo hunter2

[sso-session corp]
sso_start_url = https://corp.awsapps.com/start
"""
CREDENTIALS = """
[keys]
aws_access_key_id = AKIA1
aws_secret_access_key = hun%ter2=
aws_session_token = token

[half]
aws_access_key_id = AKIA2
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(CONFIG)
    (tmp_path / ".aws/credentials").write_text(CREDENTIALS)
    return {"HOME": str(tmp_path)}


KEYS = {
    "access_key_id": "AKIA1",
    "secret_access_key": "hun%ter2=",
    "session_token": "token",
    "region": "eu-central-1",
    "endpoint": "https://minio.example:9000",
}


def test_a_profile_gives_keys_a_region_and_an_endpoint(home: dict[str, str]) -> None:
    assert settings("s3", {}, process={**home, "AWS_PROFILE": "keys"}).config == KEYS
    assert settings("s3", {"AWS_PROFILE": "keys"}, process=home).config == KEYS
    assert settings("s3", {"profile": "keys"}, process=home).config == KEYS


def test_the_default_profile_is_used_where_nothing_else_is_given(home: dict[str, str]) -> None:
    assert settings("s3", {}, process=home).config == {"region": "eu-west-1"}
    assert settings("s3", {}, process={"HOME": "/nonexistent"}).config == {}
    assert settings("gs", {}, process=home).config == {}


def test_options_and_the_environment_beat_a_profile(home: dict[str, str]) -> None:
    process = {**home, "AWS_PROFILE": "keys", "AWS_REGION": "here"}
    found = settings("s3", {"endpoint": "https://other"}, process=process).config
    assert (found["region"], found["endpoint"]) == ("here", "https://other")
    assert found["access_key_id"] == "AKIA1"


def test_keys_of_the_environment_or_a_secret_are_not_mixed_with_a_profile(
    home: dict[str, str],
) -> None:
    mine = {"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "x"}
    expected = {"access_key_id": "mine", "secret_access_key": "x"}
    assert settings("s3", {}, process={**home, "AWS_PROFILE": "keys", **mine}).config == expected
    own = {**home, "AWS_PROFILE": "keys"}
    assert settings("s3", {}, mine, process=own).config == expected
    with pytest.raises(InvalidSpec, match="names a profile") as refused:
        settings("s3", {"profile": "keys"}, process={**home, **mine})
    assert "AWS_ACCESS_KEY_ID" in refused.value.remedy


def test_a_secret_chooses_no_profile(home: dict[str, str]) -> None:
    assert "access_key_id" not in settings("s3", {}, {"AWS_PROFILE": "keys"}, process=home).config


def test_a_role_of_a_web_identity_is_handed_to_the_client(home: dict[str, str]) -> None:
    found = settings("s3", {"profile": "web"}, process=home).config
    assert found == {"role_arn": "arn:aws:iam::1:role/lake", "web_identity_token_file": "/token"}


@pytest.mark.parametrize("name", ["sso", "assumed", "program", "half"])
def test_what_needs_awss_own_tools_says_how_to_use_them(home: dict[str, str], name: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        settings("s3", {}, process={**home, "AWS_PROFILE": name})
    assert f"export-credentials --profile {name} --format env" in refused.value.remedy
    assert "hunter2" not in str(refused.value)


def test_an_unknown_profile_is_met_with_the_closest_one(home: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec, match="no such profile") as refused:
        settings("s3", {}, process={**home, "AWS_PROFILE": "key"})
    assert refused.value.remedy == "Did you mean keys?"
    with pytest.raises(InvalidSpec, match="no such profile"):
        settings("s3", {}, process={"HOME": "/nonexistent", "AWS_PROFILE": "keys"})


def test_the_files_may_lie_elsewhere(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("[other]\naws_access_key_id=a\naws_secret_access_key=b\n")
    process = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "mine"), "AWS_PROFILE": "other"}
    assert settings("s3", {}, process=process).config["access_key_id"] == "a"


@pytest.mark.parametrize("text", [b"hunter2 without a section", b"[a]\nhunter2\n", b"[a]\n\xff\n"])
def test_a_malformed_file_is_named_and_not_shown(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "mine").write_bytes(text)
    with pytest.raises(InvalidSpec) as refused:
        settings("s3", {}, process={"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "mine")})
    assert refused.value.field == "AWS_SHARED_CREDENTIALS_FILE"
    assert str(tmp_path / "mine") in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_table_is_read_and_written_by_a_profile(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(
        f"[profile lake]\nregion = us-east-1\nendpoint_url = {s3_server.endpoint}\n"
        f"aws_access_key_id = {s3_server.access_key}\n"
        f"aws_secret_access_key = {s3_server.secret_key}\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "lake")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    store = open_store(s3_server.fresh_location())
    store.put_if_absent("a", b"1")
    assert store.get("a") == b"1"
