"""A real Iceberg REST catalog for tests: Iceberg's own servlet, with its tables in a folder.

``python -m harness.iceberg_rest`` fetches its jars by Maven into ``.sluice``, once.  What it knows
of tables is in SQLite, by Iceberg's own JDBC catalog.
"""

from __future__ import annotations

import subprocess
import sys

from harness import maven
from harness.kafka_server import ENDS_WITH_US
from harness.s3_server import S3Server

VERSION = "1.10.0"  # The newest whose tests' jar, which has the servlet, is published.
JARS = maven.FETCHED / f"iceberg-rest-{VERSION}"
MISSING = "the Iceberg REST catalog is not here; `make lake` fetches it, with Java 17 and Maven"

_MODULES = [
    f"org.apache.iceberg:iceberg-core:{VERSION}",
    f"org.apache.iceberg:iceberg-core:{VERSION}:tests",
    "org.eclipse.jetty.ee10:jetty-ee10-servlet:12.0.15",
    "org.xerial:sqlite-jdbc:3.46.1.0",
    "org.apache.hadoop:hadoop-client-api:3.4.1",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
    "org.slf4j:slf4j-nop:2.0.16",
]
_SERVER = """
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.*;
import org.eclipse.jetty.ee10.servlet.*;
import org.eclipse.jetty.server.*;

public class Catalog {
    public static void main(String[] args) throws Exception {
        var catalog = new JdbcCatalog();
        catalog.setConf(new Configuration());
        catalog.initialize("catalog", Map.of(
            "uri", "jdbc:sqlite:" + args[1] + "/catalog.db", "clients", "1",
            "jdbc.schema-version", "V1", "warehouse", "file://" + args[1] + "/warehouse",
            "io-impl", "org.apache.iceberg.hadoop.HadoopFileIO"));
        var server = new Server();
        var connector = new ServerConnector(server);
        connector.setHost("127.0.0.1");
        connector.setPort(Integer.parseInt(args[0]));
        server.addConnector(connector);
        var handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
        var servlet = new RESTCatalogServlet(new RESTCatalogAdapter(catalog));
        handler.addServlet(new ServletHolder(servlet), "/*");
        server.setHandler(handler);
        server.start();
    }
}
"""


def is_here() -> bool:
    return maven.is_fetched(JARS)


def fetch() -> None:
    """Have Maven fetch the catalog and what it needs (80 MB)."""
    maven.fetch(JARS, _MODULES, _compile)


def _compile() -> None:
    (JARS / "Catalog.java").write_text(_SERVER)
    subprocess.run(["javac", "-cp", f"{JARS}/*", "Catalog.java"], cwd=JARS, check=True)


class RestCatalog(S3Server):
    """It is started, asked whether it is there, and killed as the servers of S3 are."""

    health = "/v1/config"

    def command(self) -> list[str]:
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        java = ["java", *options, "-cp", f"{JARS}/*:{JARS}", "Catalog"]
        return [
            *(sys.executable, "-S", "-c", ENDS_WITH_US),
            *(*java, str(self._port), str(self._data_dir)),
        ]

    def environment(self) -> dict[str, str]:
        return {}


if __name__ == "__main__":
    fetch()
