"""Training in intervals of steps, each with a row in the log.

Between intervals everything that training goes on from is on the host: that
is where checkpoints are made and where a run that was stopped goes on.
"""

import dataclasses
import math
import time

import keras
import numpy as np

from examples.pretrain.log import mean_gates
from keras_sa import hub


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to do how often, in steps: updates of the weights.

    Attributes:
        steps: of the run.
        log_every: steps of an interval.
        evaluate_every: steps between held-out losses.
        checkpoint_every: steps between checkpoints.
        batch_size: sequences of a batch.
        accumulation: batches of a step.
        tokens_per_step: tokens of a step.
    """

    steps: int
    log_every: int
    evaluate_every: int
    checkpoint_every: int
    batch_size: int
    accumulation: int
    tokens_per_step: int

    def is_due(self, step, every):
        return step % every == 0 or step == self.steps


class Training:
    """A model that is being trained, and where it is.

    Args:
        model: a compiled `keras_hub.models.CausalLM` without a preprocessor.
        gates: of its swap, or none.
        batches: iterator of batches.py.
        held_out: inputs and targets.
        plan: `Plan`.
        checkpoints: `Checkpoints`.
    """

    def __init__(self, model, gates, batches, held_out, plan, checkpoints):
        self.model = model
        self.gate_meter = None
        self.num_gates = max((len(gate.starts) for gate in gates), default=0)
        if gates:
            self.gate_meter = hub.GateMeter(model)
        self.batches = batches
        self.held_out = held_out
        self.plan = plan
        self.checkpoints = checkpoints
        record = checkpoints.restore(model)
        self.step = 0
        self.log_size = 0
        self.seconds = 0.0
        self.held_out_loss = None
        if record is not None:
            batches.set_state(record["data"])
            self.step = record["step"]
            self.log_size = record["log_size"]
            self.seconds = record["seconds"]
            self.held_out_loss = record["held_out_loss"]

    def run(self, csv_log, *other_logs):
        """Trains to the end of the plan.

        Args:
            csv_log: `CsvLog` that begins at `log_size`.
            *other_logs: whatever has `write(row)`.
        """
        while self.step < self.plan.steps:
            row = self._train_interval()
            if self.plan.is_due(self.step, self.plan.evaluate_every):
                row |= self._evaluate()
            for log in (csv_log, *other_logs):
                log.write(row)
            if self.plan.is_due(self.step, self.plan.checkpoint_every):
                self._save(csv_log.size)

    def _train_interval(self):
        """The row of the log for some steps."""
        plan = self.plan
        steps = min(plan.log_every, plan.steps - self.step)
        start = time.perf_counter()
        loss = self._fit(steps * plan.accumulation)
        seconds = time.perf_counter() - start
        self.step += steps
        self.seconds += seconds
        if not math.isfinite(loss):
            raise SystemExit(
                f"The loss is expected to be finite: try a lower "
                f"--learning-rate. Received: {loss} by step {self.step}"
            )
        return {
            "step": self.step,
            "tokens": self.step * plan.tokens_per_step,
            "loss": loss,
            "learning_rate": float(self.model.optimizer.learning_rate),
            "tokens_per_second": steps * plan.tokens_per_step / seconds,
            "seconds": self.seconds,
        }

    def _fit(self, num_batches):
        """The mean loss of some batches; exactly these leave the iterator."""
        batches = (next(self.batches) for _ in range(num_batches))
        # Keras' `fit`: KerasHub's own takes no generator.
        history = keras.Model.fit(
            self.model,
            batches,
            steps_per_epoch=num_batches,
            shuffle=False,  # they are
            verbose=0,
        )
        return float(history.history["loss"][0])

    def _evaluate(self):
        """Entries of a row: the held-out loss, and the gates."""
        logs = keras.Model.evaluate(
            self.model,
            *self.held_out,
            batch_size=self.plan.batch_size,
            verbose=0,
            return_dict=True,
        )
        self.held_out_loss = float(logs["loss"])
        row = {"held_out_loss": self.held_out_loss}
        return row | mean_gates(self.measure_gates())

    def measure_gates(self):
        """Mean gates `[P]` of the terms of each layer that has any."""
        if self.gate_meter is None:
            return []
        batch = keras.tree.map_structure(
            lambda x: x[: self.plan.batch_size], self.held_out[0]
        )
        layers = self.gate_meter.measure(batch)
        return [np.mean(heads, axis=1).tolist() for heads in layers]

    def _save(self, log_size):
        record = {
            "data": self.batches.get_state(),
            "log_size": log_size,
            "seconds": self.seconds,
            "held_out_loss": self.held_out_loss,
        }
        self.checkpoints.save(self.step, self.model, record)
