"""A table of an Iceberg catalog, its tags, and the translation of its errors.

Catalogs are opened once per process.  Tables are not cached: each call loads the newest metadata,
as other processes change it.

A catalog's answer is not what became of a commit: a gateway that sends a request twice gets a
conflict with the commit that it has brought.  So after every answer but a success the table is
asked whether it has the commit's snapshots, before anybody cleans up (``_asked``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from sluice.connectors.columns import sentence
from sluice.connectors.staged_sink import attempts
from sluice.errors import ConfigurationError, SluiceError, StoreUnavailable
from sluice.extras import require_installed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.update.snapshot import ManageSnapshots

FILE_IO = "pyiceberg.io.pyarrow.PyArrowFileIO"  # The FileIO that can list a folder.
NO_RETRIES = {"commit.retry.num-retries": "0"}

NEXT = ".next"

_SECRET = re.compile(r"password|secret|token|credential|access-key|signer|sas|auth", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """The table *name*, ``namespace.table``, of the catalog that *properties* describe.

    The property ``name`` is the catalog's own name: a SQL catalog keeps several.
    """

    name: str
    properties: tuple[tuple[str, str], ...] = field(repr=False)  # They include secrets.

    def load(self) -> Table:
        """The table as it is now.

        Its transactions commit without retries.  pyiceberg's own would publish a checkpoint on top
        of another coordinator's commit of it, so callers read the note again before they retry.

        Raises:
            ConfigurationError: there is no such table.
            StoreUnavailable: try again.
        """
        table = self.find()
        if table is None:
            raise ConfigurationError(
                f"there is no Iceberg table {self.name} in the catalog "
                f"{_name_in(self.properties)!r}; create it, or let the sink do so with create=True"
            )
        return table

    def find(self) -> Table | None:
        """The table as ``load`` returns it; None when there is none."""
        self._require()
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with self.failures():
            try:
                table = _asked(_catalog(self.properties).load_table(self.name))
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
        # Only in this copy: the catalog is sent changes, and this is none.
        properties = {**table.metadata.properties, **NO_RETRIES}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        return table

    def create(self, schema: pa.Schema | None) -> Table:
        """Create the table, or load it if it exists; without a *schema* it has no columns."""
        self._require()
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.schema import Schema

        with self.failures():
            catalog = _catalog(self.properties)
            catalog.create_namespace_if_not_exists(catalog.namespace_from(self.name))
            try:
                catalog.create_table(self.name, schema=schema if schema is not None else Schema())
            except TableAlreadyExistsError:
                pass
            except (TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"the Iceberg table {self.name} cannot be created from these columns: {error}"
                ) from error
        return self.load()

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Translate the errors of pyiceberg and its libraries into those of sluice.

        CommitFailedException and CommitStateUnknownException of a commit are kept.
        """
        from pydantic import ValidationError
        from pyiceberg import exceptions as iceberg
        from requests import RequestException
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        try:
            yield
        except (SluiceError, iceberg.CommitFailedException, iceberg.CommitStateUnknownException):
            raise
        except (
            iceberg.UnauthorizedError,
            iceberg.ForbiddenError,
            iceberg.OAuthError,
            iceberg.BadRequestError,
            iceberg.NotInstalledError,
        ) as error:
            raise ConfigurationError(self._message("refused", error)) from None
        except (DBAPIError, iceberg.RESTError, RequestException, OSError) as error:
            raise StoreUnavailable(self._message("did not answer", error)) from None
        except (UnicodeError, SystemError, EOFError) as error:  # What pyiceberg makes of a page.
            raise StoreUnavailable(self._message("are not what was written", error)) from None
        except SQLAlchemyError as error:
            raise ConfigurationError(self._message("cannot be opened", error)) from None
        except (iceberg.ValidationError, ValidationError) as error:
            unreadable = error if isinstance(error, ValidationError) else error.__cause__
            if not isinstance(unreadable, ValidationError):
                raise
            first = unreadable.errors()[0]
            why = first["msg"].removeprefix("Value error, ")
            if first["type"] == "json_invalid":  # A page of something in between.
                raise StoreUnavailable(
                    self._message("are not what was written", ValueError(why))
                ) from None
            raise ConfigurationError(
                f"pyiceberg cannot read the metadata of the Iceberg table {self.name}: {why}"
            ) from None

    def _require(self) -> None:
        require_installed("pyiceberg", "sqlalchemy", who=f"the Iceberg table {self.name}")

    def _message(self, what: str, error: Exception) -> str:
        return (
            f"the catalog or the files of the Iceberg table {self.name} {what}: "
            + without_secrets(f"{type(error).__name__}: {sentence(error)}", self.properties)
        )


def _asked(table: Table) -> Table:
    """*table*, whose commits end as the table says afterwards, whatever the catalog answered.

    pyiceberg deletes the manifests of a commit that failed, and the sink its data files, which
    destroys a table that has them.

        the table has the snapshots          the commit succeeded
        it has not, and refused the commit   CommitFailedException: whoever wrote files deletes them
        it has not, for another reason       that error, and ``may_arrive``: files stay
        it does not answer                   CommitStateUnknownException, and ``may_arrive``
    """
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
    from pyiceberg.table import Table
    from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate

    class AskedTable(Table):
        may_arrive = False

        def _do_commit(
            self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]
        ) -> None:
            ids = [u.snapshot.snapshot_id for u in updates if isinstance(u, AddSnapshotUpdate)]
            try:
                super()._do_commit(updates, requirements)
            except Exception as error:
                # Without snapshots it wrote no file, and who changes a schema or a tag looks again.
                if not ids or not self._has(ids, error):
                    raise
                self.may_arrive = False

        def _has(self, ids: Sequence[int], error: Exception) -> bool:
            """Whether the table has the snapshots *ids*, whose commit ended with *error*."""
            self.may_arrive = True
            try:
                now = self.catalog.load_table(self.name())
            except Exception as silent:  # noqa: BLE001 - whatever it is: nobody knows then
                raise CommitStateUnknownException(
                    f"{type(error).__name__}: {error}; and the table cannot be asked: {silent}"
                ) from error
            if any(now.metadata.snapshot_by_id(id_) is None for id_ in ids):
                self.may_arrive = not isinstance(error, CommitFailedException)
                return False
            self.metadata, self.metadata_location = now.metadata, now.metadata_location
            return True

    return AskedTable(
        table.name(), table.metadata, table.metadata_location, table.io, table.catalog, table.config
    )


def may_arrive(table: Table) -> bool:
    """Whether a commit of *table* failed, and may be in the table later; see ``_asked``."""
    return bool(getattr(table, "may_arrive", False))


def catalog_properties(
    declared: Mapping[str, str], endpoint_url: str | None
) -> tuple[tuple[str, str], ...]:
    """*declared*, with defaults for the S3 server at *endpoint_url*, that of the job."""
    properties = {"py-io-impl": FILE_IO, **{key: value for key, value in declared.items() if value}}
    if endpoint_url is not None:
        properties.setdefault("s3.endpoint", endpoint_url)
    if properties["py-io-impl"] != FILE_IO:
        raise ConfigurationError(
            f"the catalog property py-io-impl is {properties['py-io-impl']}; leave it out, for "
            f"staged files are listed and deleted with {FILE_IO}"
        )
    return tuple(sorted(properties.items()))


def without_secrets(text: str, properties: tuple[tuple[str, str], ...]) -> str:
    """*text* without the secrets of *properties*, passwords in URIs included."""
    secrets = {value for key, value in properties if _SECRET.search(key)}
    for _, value in properties:
        if "://" in value and (password := urlsplit(value).password):
            secrets |= {password, unquote(password)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


@lru_cache(maxsize=32)
def _catalog(properties: tuple[tuple[str, str], ...]) -> Catalog:
    from pydantic import ValidationError
    from pyiceberg.catalog import load_catalog

    name = _name_in(properties)
    others = {key: value for key, value in properties if key != "name"}
    try:
        return load_catalog(name, **others)
    except ValidationError:
        raise  # Of what the catalog has answered.
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the Iceberg catalog {name!r} cannot be opened: "
            f"{without_secrets(str(error), properties)}; see the catalog's properties in "
            "pyiceberg's documentation"
        ) from None


def _name_in(properties: tuple[tuple[str, str], ...]) -> str:
    return dict(properties).get("name", "default")


@dataclass(frozen=True, slots=True)
class Tags:
    """Tags of the table at *place* that protect snapshots from expiry.

    ``{name}``, and ``{name}.next`` for a second snapshot.
    """

    place: CatalogTable

    def keep(self, name: str, snapshot_ids: Sequence[int]) -> None:
        """Tag the snapshots; raises ConfigurationError when one of them has expired already."""
        wanted = dict(zip((name, name + NEXT), snapshot_ids, strict=False))

        def change(table: Table) -> ManageSnapshots | None:
            refs = table.metadata.refs
            missing = {
                tag: snapshot_id
                for tag, snapshot_id in wanted.items()
                if tag not in refs or refs[tag].snapshot_id != snapshot_id
            }
            if not missing:
                return None
            update = table.manage_snapshots()
            for tag, snapshot_id in missing.items():
                if table.snapshot_by_id(snapshot_id) is None:
                    raise ConfigurationError(
                        f"snapshot {snapshot_id} of the Iceberg table {self.place.name} has "
                        "expired before it could be kept; keep snapshots for longer"
                    )
                update.create_tag(snapshot_id, tag)
            return update

        self._change(name, change)

    def release(self, name: str) -> None:
        def change(table: Table) -> ManageSnapshots | None:
            present = [tag for tag in (name, name + NEXT) if tag in table.metadata.refs]
            update = table.manage_snapshots()
            for tag in present:
                update.remove_tag(tag)
            return update if present else None

        self._change(name, change)

    def held(self, prefix: str) -> tuple[str, ...]:
        from pyiceberg.table.refs import SnapshotRefType

        names = {
            tag.removesuffix(NEXT)
            for tag, ref in self.place.load().metadata.refs.items()
            if tag.startswith(prefix) and ref.snapshot_ref_type is SnapshotRefType.TAG
        }
        return tuple(sorted(names))

    def _change(self, name: str, change: Callable[[Table], ManageSnapshots | None]) -> None:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        for _ in attempts(
            f"the tag {name} of the Iceberg table {self.place.name} could not be changed"
        ):
            update = change(self.place.load())
            if update is None:
                return
            try:
                update.commit()
            except (CommitFailedException, CommitStateUnknownException):
                continue
            return
