"""Apache Iceberg tables, of any catalog, as a source and as a sink."""
