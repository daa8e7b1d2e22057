"""An archive: decisions and events of a log as immutable Parquet files (docs/archive.md)."""
