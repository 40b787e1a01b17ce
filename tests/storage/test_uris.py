"""Normalization of locations to URIs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import TidegateError
from tidegate.storage import open_store, uri
from tidegate.storage.uris import bucket_and_key, to_path, to_spark_uri

PARTS = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
PATHS = st.lists(PARTS.filter(lambda part: part not in (".", "..")), max_size=5)
KEYS = st.text(st.characters(exclude_characters="/\0@:", exclude_categories=["Cs"]), min_size=1)


@given(PATHS)
def test_path_round_trips(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    file_uri = uri(path)
    assert to_path(file_uri) == path
    assert uri(file_uri) == file_uri
    assert file_uri.isascii()
    assert to_spark_uri(file_uri) == "file://" + path


@given(st.lists(st.binary(min_size=1).filter(lambda part: b"/" not in part and b"\0" not in part)))
def test_path_with_undecodable_bytes_round_trips(parts: list[bytes]) -> None:
    path = os.fsdecode(b"/" + b"/".join(part for part in parts if part not in (b".", b"..")))
    assert to_path(uri(path)) == path


@given(st.sampled_from(["s3", "gs", "az"]), st.lists(KEYS.filter(lambda k: k not in (".", ".."))))
def test_object_keys_are_not_encoded(scheme: str, parts: list[str]) -> None:
    text = "/".join([f"{scheme}://bucket", *parts])
    assert uri(text) == text
    assert bucket_and_key(uri(text + "/")) == ("bucket", "/".join(parts))


def test_paths_become_file_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    base = f"file://{tmp_path}"
    assert uri("a") == uri("./a/") == uri("b/../a") == uri(Path("a")) == f"{base}/a"
    assert uri("~/a") == f"{base}/home/a"
    assert uri("./~") == f"{base}/~"
    assert uri("12:30") == f"{base}/12:30"
    assert uri("/") == "file:///"
    assert uri("//a//b/") == "file:///a/b"
    assert uri("a b%20#?") == f"{base}/a%20b%2520%23%3F"


def test_normalizes_file_uris() -> None:
    for text in ("file:/a/b%20c", "file:///a/b c/", "FILE://localhost/a/./b%20c", "/a/b c"):
        assert uri(text) == "file:///a/b%20c"


def test_parent_of_link_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "inner")
    assert uri(f"{tmp_path}/link/../x") == f"file://{tmp_path}/real/x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3a://bucket/a b/%41/", "s3://bucket/a b/%41"),
        ("s3n://bucket", "s3://bucket"),
        ("S3://bucket//", "s3://bucket"),
        ("gs://bucket/x", "gs://bucket/x"),
        ("abfs://box@account.dfs.core.windows.net/x", "abfss://box@account.dfs.core.windows.net/x"),
        ("az://box/x/", "az://box/x"),
    ],
)
def test_normalizes_object_uris(text: str, expected: str) -> None:
    assert uri(text) == expected


def test_spark_uri_of_s3_uses_s3a() -> None:
    assert to_spark_uri("s3://bucket/a b/x") == "s3a://bucket/a b/x"
    assert to_spark_uri("gs://bucket/x") == "gs://bucket/x"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("hdfs://host/x", "hdfs: is not a scheme", "s3"),
        ("s33://b/x", "s33: is not a scheme", "did you mean s3"),
        ("s3:/bucket/x", "names no bucket", "s3://bucket/folder"),
        ("s3:///x", "names no bucket", "s3://bucket/folder"),
        ("s3://bucket/a//b", "is not a valid object key", "//"),
        ("s3://bucket/../b", "is not a valid object key", "/../"),
        ("file://host/x", "names another machine", "file:///"),
        ("file:x", "is a relative URI", "without file:"),
        ("", "is not a valid path", "s3://"),
        ("a\0b", "is not a valid path", "s3://"),
    ],
)
def test_rejects_invalid_locations(text: str, message: str, hint: str) -> None:
    with pytest.raises(TidegateError) as caught:
        uri(text)
    assert caught.value.code == "TG-530"
    assert message in caught.value.message
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_rejects_secrets_in_uri_without_showing_them() -> None:
    for text in ("s3://key:very-secret@bucket/x", "gs://very-secret@bucket"):
        with pytest.raises(TidegateError) as caught:
            uri(text)
        assert "very-secret" not in str(caught.value)


def test_opening_a_store_creates_nothing(tmp_path: Path) -> None:
    assert open_store(str(tmp_path / "a")).list() == []
    assert list(tmp_path.iterdir()) == []
