"""What the tests of evaluation share."""

import pytest
import tiny_models


@pytest.fixture(scope="module")
def causal_lm():
    return tiny_models.shared_model()


@pytest.fixture(scope="module")
def scorer():
    return tiny_models.shared_scorer()
