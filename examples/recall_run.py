"""What the recall example keeps of a run."""

import dataclasses
import math


@dataclasses.dataclass
class Run:
    """A model that was trained and measured.

    Attributes:
        attention: its name.
        seed: of weights, data and permutations.
        options: of `hub.swap_attention`.
        visible_keys: per token, in the mean.
        accuracy: of each bucket of distances.
        count: questions in each bucket.
        seconds: of training and measuring.
    """

    attention: str
    seed: int
    options: dict
    visible_keys: float
    accuracy: list
    count: list
    seconds: float

    def summary(self):
        shares = " ".join(f"{100 * share:.0f}" for share in self.accuracy)
        return f"% right by distance: {shares}  ({self.seconds:.0f} s)"

    def total_accuracy(self):
        """Over the questions of all buckets."""
        pairs = zip(self.accuracy, self.count)
        right = sum(share * count for share, count in pairs if count)
        return right / sum(self.count) if sum(self.count) else math.nan
