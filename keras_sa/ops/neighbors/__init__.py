"""Attention to a list of neighbours, in several implementations."""
