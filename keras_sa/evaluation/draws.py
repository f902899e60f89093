"""Random integers and orders that are the same with every version of NumPy.

NumPy keeps the bits of a `BitGenerator` for good, but not what its
`Generator` makes of them (NumPy's enhancement proposal 19). So the bits are
taken, and the integers are made here.
"""

import numpy as np

from keras_sa import _validation


class Draws:
    """A stream of draws from a seed.

    Args:
        seed: int of at most 32 bits.

    Example:

    >>> from keras_sa.evaluation.draws import Draws
    >>> Draws(seed=1).integers(10, (5,))
    array([5, 9, 1, 9, 3])
    """

    def __init__(self, seed):
        seed = _validation.check_seed(seed)
        self._bits = np.random.PCG64(seed % 2**32)

    def integers(self, high, shape):
        """int64 of a shape: independent and uniform over `0 .. high - 1`."""
        # The upper half of a product of 32 bits: one in 2**32 / high values
        # is too likely, by at most as much.
        upper = self._raw(shape) >> np.uint64(32)
        return ((upper * np.uint64(high)) >> np.uint64(32)).astype("int64")

    def orders(self, num_orders, size):
        """int64 `[num_orders, size]`: independent random orders of a range."""
        return np.argsort(self._raw((num_orders, size)), axis=1, kind="stable")

    def _raw(self, shape):
        return self._bits.random_raw(int(np.prod(shape))).reshape(shape)
