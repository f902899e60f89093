"""What only torch can tell about a trace in progress."""

import torch


def is_tracing():
    """Whether `torch.compile` or `torch.export` is reading the code."""
    return torch.compiler.is_compiling()
