"""Attention to the blocks that each query chooses."""
