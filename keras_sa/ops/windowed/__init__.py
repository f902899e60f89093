"""Attention over a window of slots, in several implementations."""
