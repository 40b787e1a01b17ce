"""What people write for a place becomes one URI."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import TidegateError
from tidegate.storage import open_store, uri
from tidegate.storage.uris import bucket_and_key, for_spark, path_of

PARTS = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
PATHS = st.lists(PARTS.filter(lambda part: part not in (".", "..")), max_size=5)
KEYS = st.text(st.characters(exclude_characters="/\0@:", exclude_categories=["Cs"]), min_size=1)


@given(PATHS)
def test_paths_come_back(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    made = uri(path)
    assert path_of(made) == path
    assert uri(made) == made
    assert made.isascii()
    assert for_spark(made) == "file://" + path


@given(st.lists(st.binary(min_size=1).filter(lambda part: b"/" not in part and b"\0" not in part)))
def test_paths_that_are_no_text_come_back(parts: list[bytes]) -> None:
    path = os.fsdecode(b"/" + b"/".join(part for part in parts if part not in (b".", b"..")))
    assert path_of(uri(path)) == path


@given(st.sampled_from(["s3", "gs", "az"]), st.lists(KEYS.filter(lambda k: k not in (".", ".."))))
def test_keys_are_taken_as_they_are(scheme: str, parts: list[str]) -> None:
    written = "/".join([f"{scheme}://bucket", *parts])
    assert uri(written) == written
    assert bucket_and_key(uri(written + "/")) == ("bucket", "/".join(parts))


def test_a_path_means_the_local_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    here = f"file://{tmp_path}"
    assert uri("a") == uri("./a/") == uri("b/../a") == uri(Path("a")) == f"{here}/a"
    assert uri("~/a") == f"{here}/home/a"
    assert uri("./~") == f"{here}/~"
    assert uri("12:30") == f"{here}/12:30"
    assert uri("/") == "file:///"
    assert uri("//a//b/") == "file:///a/b"
    assert uri("a b%20#?") == f"{here}/a%20b%2520%23%3F"


def test_file_uris_are_written_in_one_way() -> None:
    for text in ("file:/a/b%20c", "file:///a/b c/", "FILE://localhost/a/./b%20c", "/a/b c"):
        assert uri(text) == "file:///a/b%20c"


def test_links_are_not_walked_past(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "inner")
    assert uri(f"{tmp_path}/link/../x") == f"file://{tmp_path}/real/x"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("s3a://bucket/a b/%41/", "s3://bucket/a b/%41"),
        ("s3n://bucket", "s3://bucket"),
        ("S3://bucket//", "s3://bucket"),
        ("gs://bucket/x", "gs://bucket/x"),
        ("abfs://box@account.dfs.core.windows.net/x", "abfss://box@account.dfs.core.windows.net/x"),
        ("az://box/x/", "az://box/x"),
    ],
)
def test_object_stores(written: str, meant: str) -> None:
    assert uri(written) == meant


def test_spark_has_its_own_name_for_s3() -> None:
    assert for_spark("s3://bucket/a b/x") == "s3a://bucket/a b/x"
    assert for_spark("gs://bucket/x") == "gs://bucket/x"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("hdfs://host/x", "hdfs: is not a scheme", "s3"),
        ("s33://b/x", "s33: is not a scheme", "did you mean s3"),
        ("s3:/bucket/x", "names no bucket", "s3://bucket/folder"),
        ("s3:///x", "names no bucket", "s3://bucket/folder"),
        ("s3://bucket/a//b", "is no place in a bucket", "//"),
        ("s3://bucket/../b", "is no place in a bucket", "/../"),
        ("file://host/x", "names another machine", "file:///"),
        ("file:x", "is a relative URI", "without file:"),
        ("", "is no path", "s3://"),
        ("a\0b", "is no path", "s3://"),
    ],
)
def test_what_is_no_place_is_rejected(text: str, message: str, hint: str) -> None:
    with pytest.raises(TidegateError) as caught:
        uri(text)
    assert caught.value.code == "TG-504"
    assert message in caught.value.message
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_secrets_in_a_uri_are_rejected_and_not_shown() -> None:
    for text in ("s3://key:very-secret@bucket/x", "gs://very-secret@bucket"):
        with pytest.raises(TidegateError) as caught:
            uri(text)
        assert "very-secret" not in str(caught.value)


def test_opening_a_place_makes_nothing(tmp_path: Path) -> None:
    assert open_store(str(tmp_path / "a")).list() == []
    assert list(tmp_path.iterdir()) == []
