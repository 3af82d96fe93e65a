"""Whatever Spark reads, as a source: what came, or changed, since the reading before."""
