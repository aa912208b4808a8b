"""Descriptions of the cluster and its workers."""
