"""Delta Lake tables, as a source of rows or changes and as an exactly-once sink, by deltalake."""
