"""Do the tests that wait longest begin first, and is every test still run once?"""

from __future__ import annotations

import pytest

from tests.support.longest_first import dealt

TESTS = """
import pytest
@pytest.mark.parametrize("n", range(17))
def test_short(n): pass
@pytest.mark.long
@pytest.mark.parametrize("n", range(5))
def test_long(n): pass
"""


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 50])
def test_long_tests_begin_the_first_half_of_the_stretches(
    pytester: pytest.Pytester, workers: int
) -> None:
    pytester.makeini("[pytest]\nmarkers = long: waits")
    pytester.makepyfile(TESTS)
    items = pytester.inline_genitems()[0]
    names = [item.name for item in dealt(items, workers)]
    assert sorted(names) == sorted(item.name for item in items)
    if workers == 4:  # stretches of 5, 5, 6 and 6 tests
        assert names[:3] == ["test_long[0]", "test_long[2]", "test_long[4]"]
        assert names[5:7] == ["test_long[1]", "test_long[3]"]
