"""One of two processes that train a model together.

    python torch_processes.py RANK FOLDER

Each writes the model it ended with into the folder; process 0 also the model
that one process makes of the whole batch.
"""

import datetime
import pathlib
import sys

import numpy as np
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.hub.distribution import training

NUM_PROCESSES = 2
NUM_STEPS = 2


class WithParameters(torch.nn.Module):
    """Shows torch the parameters of a KerasHub model.

    KerasHub 0.32 hides them: `model.parameters()` is empty. (After a swap
    with gates it is not: Keras is told of them, and of all others with them.)
    """

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.shown = torch.nn.ParameterList(
            variable.value for variable in model.trainable_variables
        )

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs)


def train(causal_lm, network, rows):
    """The loop of the Keras guide on distributed training with PyTorch."""
    inputs, labels = training.data()
    inputs = {name: torch.as_tensor(x[rows]) for name, x in inputs.items()}
    labels = torch.as_tensor(labels[rows]).long()
    trainable = [p for p in network.parameters() if p.requires_grad]
    assert len(trainable) == len(causal_lm.trainable_variables)
    optimizer = torch.optim.SGD(trainable, lr=training.LEARNING_RATE)
    loss_function = torch.nn.CrossEntropyLoss()
    for _ in range(NUM_STEPS):
        logits = network(inputs, training=True)
        loss = loss_function(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def run(swap, rank=None):
    """Trains on the rows of one process, or on all of them."""
    causal_lm = training.build("llama", swap)
    has_gates = bool(training.gates(causal_lm))
    network = causal_lm if has_gates else WithParameters(causal_lm)
    rows = slice(None)
    if rank is not None:
        network = DistributedDataParallel(network)
        rows = slice(rank, None, NUM_PROCESSES)
    train(causal_lm, network, rows)
    return {v.path: v.numpy() for v in causal_lm.variables}


def main(rank, folder):
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=NUM_PROCESSES,
        timeout=datetime.timedelta(minutes=3),
    )
    for swap in training.SWAPS:
        np.savez(folder / f"{swap}_{rank}.npz", **run(swap, rank))
    distributed.destroy_process_group()
    if rank == 0:
        for swap in training.SWAPS:
            np.savez(folder / f"{swap}_alone.npz", **run(swap))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), pathlib.Path(sys.argv[2]))
