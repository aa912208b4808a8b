"""Polars queries on the cluster: plans as Polars serializes them, split into stages of tasks.

Importing these modules imports polars. `millrace` itself does not import them."""
