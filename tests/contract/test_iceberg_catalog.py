"""Descriptors of Iceberg tables: light, picklable, and silent about secrets."""

from __future__ import annotations

import pickle
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from harness.gateway import A_PAGE
from sluice.connectors.iceberg.catalog import CatalogTable, catalog_properties, without_secrets
from sluice.connectors.iceberg.declared_sink import IcebergTable as Sink
from sluice.connectors.iceberg.declared_source import IcebergTable as Source
from sluice.declaration.params import env, param
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.store.open import StoreLocation
from tests.contract.s3_stub import served

ROOT = StoreLocation(root="s3://jobs/root/shop/tables/sales")


def test_a_descriptor_names_its_parameters_and_travels() -> None:
    uri, table = param("uri"), param("table")
    for kind in (Sink, Source):
        spec = kind(table, {"type": "rest", "uri": uri, "token": env("TOKEN")})
        assert spec.params == (table, uri)
        assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301 - of this very test


def test_the_identity_follows_from_the_root_and_keeps_two_roots_apart() -> None:
    def identity(root: str, **fields: Any) -> str:
        spec = Sink("shop.sales", {"type": "sql"}, **fields)
        return spec.open("sales", {}, StoreLocation(root=root)).identity

    assert identity(ROOT.root).startswith("shop.sales-")
    assert identity(ROOT.root) == identity(ROOT.root)
    assert identity(ROOT.root) != identity("s3://jobs/other/shop/tables/sales")
    assert identity(ROOT.root, identity="mine") == "mine"
    with pytest.raises(ConfigurationError, match="the identity 'a/b'"):
        identity(ROOT.root, identity="a/b")


def test_no_message_and_no_repr_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URI", "postgresql+psycopg://joe:s3cr%21t@127.0.0.1:1/db?connect_timeout=1")
    spec = Sink("shop.sales", {"type": "sql", "uri": env("URI"), "s3.secret-access-key": "hush"})
    sink = spec.open("sales", {}, ROOT)

    assert "s3cr" not in repr(spec) + repr(sink)
    assert "hush" not in repr(sink)
    with pytest.raises(StoreUnavailable) as raised:
        sink.is_published(1)
    assert "s3cr" not in str(raised.value)
    assert without_secrets("user joe of s3cr!t and s3cr%21t, hush", sink.place.properties) == (
        "user joe of *** and ***, ***"
    )


def test_a_catalog_that_cannot_be_is_named_without_its_secrets() -> None:
    place = CatalogTable("shop.sales", (("token", "hush"), ("type", "nosuch")))

    with pytest.raises(ConfigurationError, match="the Iceberg catalog 'default'") as raised:
        place.load()
    assert "hush" not in str(raised.value)


def test_a_rest_catalog_that_does_not_answer_may_answer_later() -> None:
    place = CatalogTable("shop.sales", (("type", "rest"), ("uri", "http://127.0.0.1:1")))

    with pytest.raises(StoreUnavailable, match=r"shop\.sales did not answer"):
        place.load()


@pytest.mark.parametrize("answered", [(), ("/v1/config",)], ids=["at once", "to the table"])
def test_a_page_of_something_in_between_is_no_answer_of_a_rest_catalog(
    answered: tuple[str, ...],
) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            has_passed = self.path in answered
            self.wfile.write(b'{"defaults": {}, "overrides": {}}' if has_passed else A_PAGE)

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler) as url:
        place = CatalogTable("shop.sales", (("type", "rest"), ("uri", url)))

        with pytest.raises(StoreUnavailable, match=r"shop\.sales are not what was written: .*JSON"):
            place.load()


def test_a_table_without_a_namespace_is_refused() -> None:
    given = param("table")
    with pytest.raises(ConfigurationError, match="names no namespace"):
        Sink(given, {"type": "rest"}).open("sales", {"table": "sales"}, ROOT)
    with pytest.raises(ConfigurationError, match="names no namespace"):
        Source(given, {"type": "rest"}).open({"table": "sales"}, None)


def test_another_file_io_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="py-io-impl"):
        catalog_properties({"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}, None)


def test_the_jobs_own_s3_server_is_the_catalogs_unless_it_says_otherwise() -> None:
    ours = "http://127.0.0.1:9"
    assert dict(catalog_properties({}, ours))["s3.endpoint"] == ours
    assert dict(catalog_properties({"s3.endpoint": "http://b"}, ours))["s3.endpoint"] == "http://b"
