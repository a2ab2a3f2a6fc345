"""The fixtures of roles, for tests with and without processes."""

from collections.abc import Iterator

import pytest
from proxied import Engine
from role_samples import role


@pytest.fixture
def engine() -> Iterator[Engine]:
    """A server behind a proxy."""
    served = Engine()
    yield served
    served.close()
