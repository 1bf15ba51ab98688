from __future__ import annotations

from collections.abc import Iterator

import pytest

from .browser import MISSING, Browser, find_driver, open_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of pages."""
    if find_driver() is None:
        pytest.skip(MISSING)
    with open_browser() as opened:
        yield opened
