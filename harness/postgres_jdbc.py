"""PostgreSQL's JDBC driver, with which Spark reads the PostgreSQL of the tests.

``python -m harness.postgres_jdbc`` fetches it by Maven into ``.sluice``, once.
"""

from __future__ import annotations

from harness import maven

VERSION = "42.7.8"
JARS = maven.FETCHED / f"postgres-jdbc-{VERSION}"
JAR = JARS / f"postgresql-{VERSION}.jar"
CLASS = "org.postgresql.Driver"
MISSING = "PostgreSQL's JDBC driver is not here; `make jdbc` fetches it, with Java 17 and Maven"


def is_here() -> bool:
    return maven.is_fetched(JARS)


def fetch() -> None:
    """Have Maven fetch the driver (1 MB)."""
    maven.fetch(JARS, [f"org.postgresql:postgresql:{VERSION}"], lambda: None)


if __name__ == "__main__":
    fetch()
