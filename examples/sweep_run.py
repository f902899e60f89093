"""What the sweep keeps of a run."""

import dataclasses


@dataclasses.dataclass
class Run:
    """A measurement of a model under one attention.

    Attributes:
        attention: its name.
        budget: visible keys that were asked for; `None` of full attention.
        seed: of the permutations; `None` where none are drawn.
        options: of `hub.swap_attention`.
        visible_keys: per token, in the mean, as they are.
        loss: nats per token.
        last_quarter_loss: of the tokens with the longest context alone.
        num_tokens: that were predicted.
        seconds: of measuring; with compilation, where it is the first.
    """

    attention: str
    budget: int | None
    seed: int | None
    options: dict
    visible_keys: float
    loss: float
    last_quarter_loss: float
    num_tokens: int
    seconds: float

    def summary(self):
        seed = "" if self.seed is None else f"seed {self.seed}: "
        return (
            f"{seed}loss {self.loss:.4f}, in the last quarter "
            f"{self.last_quarter_loss:.4f}  ({self.seconds:.0f} s)"
        )
