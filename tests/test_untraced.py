"""Does what counts for the coverage of core/ not depend on the order of tests?"""

from __future__ import annotations

import pytest

from streamdp.core import engine
from streamdp.core.evidence import policy_arithmetic
from streamdp.core.selection import laws
from tests.support.untraced import kept


def test_is_everything_that_core_keeps_forgotten() -> None:
    policy_arithmetic._normal_table()
    laws._legendre()
    for clear in kept():
        clear()
    for function in (policy_arithmetic._normal_table, laws._legendre):
        assert function.cache_info().currsize == 0


def test_are_the_engine_s_names_found_when_they_are_first_asked_for() -> None:
    """Each is asked for while tests are collected, which is not traced, and stands there then."""
    for name in engine.__all__:
        assert engine.__getattr__(name) is getattr(engine, name)
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        _ = engine.Motor


def test_finds_a_traced_test_nothing_that_an_untraced_one_has_computed(
    pytester: pytest.Pytester,
) -> None:
    """Three tests, of which the middle one is not traced and asks first."""
    pytester.makeconftest('pytest_plugins = ("tests.support.untraced",)')
    pytester.makepyfile("""
        import pytest
        from streamdp.core.evidence.policy_arithmetic import _normal_table

        def test_traced(): _normal_table(); _normal_table.cache_clear()

        @pytest.mark.no_cover
        def test_untraced(): _normal_table()

        def test_traced_too(): assert _normal_table.cache_info().currsize == 0
    """)
    pytester.runpytest().assert_outcomes(passed=3)
