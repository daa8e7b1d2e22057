"""The archive of a log as Parquet: `flow` is the way of the data, `runs` what the command does."""
