"""The URIs of roots: their stores, and the refusal of misspelt ones."""

from __future__ import annotations

import pytest

from sluice.errors import ConfigurationError
from sluice.store.open import StoreLocation, open_store


def test_one_name_is_one_store_in_memory() -> None:
    open_store(StoreLocation(root="memory://shared-name")).put("a", b"x")
    below = open_store(StoreLocation(root="memory://shared-name/b"))
    below.put("c", b"y")

    assert open_store(StoreLocation(root="memory://shared-name")).get("b/c") == b"y"
    assert [listed.key for listed in below.list("")] == ["c"]
    assert below.root == "memory://shared-name/b"

    assert open_store(StoreLocation(root="memory://shared-name")).get("a") == b"x"
    assert open_store(StoreLocation(root="memory://another-name")).get("a") is None


@pytest.mark.parametrize(
    "root",
    [
        *("", "/tmp/x", "s3:/b/x", "s3://", "s3://ab/x", "s3://Abc", "s3://abc//x"),
        *("s3://abc/../x", "file://folder", "file:///a/../b"),
        *("memory://", "memory:///a", "memory://a/../b", "gs://bucket/x"),
    ],
)
def test_a_misspelt_root_is_refused_with_examples(root: str) -> None:
    with pytest.raises(ConfigurationError, match="s3://my-bucket/checkpoints"):
        StoreLocation(root=root)


def test_a_root_is_normalised() -> None:
    def root_of(root: str) -> str:
        return open_store(StoreLocation(root=root)).root

    assert root_of("file:///a b/c/") == "file:///a b/c"
    assert root_of("s3://abc") == "s3://abc"
    assert root_of("s3://abc/") == "s3://abc"
    assert root_of("s3://abc/x/y/") == "s3://abc/x/y"
    assert root_of("memory://m") == "memory://m"


def test_an_endpoint_without_a_scheme_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"http://host:port"):
        StoreLocation(root="s3://abc", endpoint_url="localhost:9000")
