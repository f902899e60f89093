"""Attention to a list of neighbors, in several implementations."""
