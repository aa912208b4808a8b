"""Dask's collections on a cluster: their graphs, and what Dask asks of a scheduler.

Dask is imported by none of these modules when they are loaded, only by functions that are given an
object of Dask's.
"""
