"""PostgreSQL, as a source (a table by a growing column) and as a sink (a table and a ledger)."""
