"""Data frames of pandas, Arrow, Polars and cuDF in pieces: rows are split by hash, by range or by
number, and pieces are put together again."""
