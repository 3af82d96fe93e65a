"""Files of a folder or a bucket as a source: text, Parquet and Avro."""
