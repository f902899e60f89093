"""What only torch can tell about a trace in progress."""

import torch


def is_tracing():
    """Whether `torch.compile` or `torch.export` is reading the code."""
    return torch.compiler.is_compiling()


def is_transforming():
    """Whether `torch.func` or forward-mode differentiation is at work."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def is_in_backward():
    """Whether autograd is running a backward pass in this thread."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1
