"""Can a test be left out without anyone noticing?"""

import pytest

LEFT_OUT = {
    "skipped": "@pytest.mark.skip(reason='because')\ndef test_it(): pass",
    "skipped from within": "def test_it(): pytest.skip('because')",
    "a whole file": "pytest.skip('because', allow_module_level=True)",
    "expected to fail": "@pytest.mark.xfail\ndef test_it(): assert False",
    "lacking a program": "@pytest.mark.system('no-such-program')\ndef test_it(): pass",
}


def outcome(pytester: pytest.Pytester, body: str, *options: str) -> pytest.RunResult:
    """One ordinary test, and the body beside it, in a session of their own."""
    pytester.makeini("[pytest]\nmarkers = system(program): needs it")
    pytester.makepyfile(f"import pytest\n\ndef test_that_runs(): pass\n\n{body}\n")
    return pytester.runpytest_inprocess("-p", "tests.support.left_out", *options)


@pytest.mark.parametrize("body", LEFT_OUT.values(), ids=LEFT_OUT.keys())
def test_strictly_each_way_to_leave_a_test_out_is_a_failure(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setenv("STREAMDP_STRICT", "1")
    result = outcome(pytester, body)
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*TESTS THAT DID NOT RUN, AND THAT IS A FAILURE HERE*"])


def test_strictly_a_deselected_test_is_a_failure(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMDP_STRICT", "1")
    result = outcome(pytester, "def test_other(): pass", "-k", "that_runs")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*test_other: deselected"])


def test_strictly_a_suite_that_runs_whole_passes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMDP_STRICT", "1")
    result = outcome(pytester, "@pytest.mark.system('sh')\ndef test_other(): pass")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*DID NOT RUN*")


def test_elsewhere_a_missing_program_is_said_loudly(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STREAMDP_STRICT", raising=False)
    result = outcome(pytester, LEFT_OUT["lacking a program"])
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*TESTS THAT DID NOT RUN*", "*not installed: no-such-program*"])


def test_a_marker_that_names_no_program_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STREAMDP_STRICT", raising=False)
    assert outcome(pytester, "@pytest.mark.system\ndef test_it(): pass").ret != 0


@pytest.mark.slow
def test_strictly_each_way_is_told_in_two_processes_too(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ways in one session, which takes seconds: each test that did not run is named."""
    monkeypatch.setenv("STREAMDP_STRICT", "1")
    for name, body in LEFT_OUT.items():
        pytester.makepyfile(**{f"test_{name.replace(' ', '_')}": f"import pytest\n\n{body}\n"})
    result = outcome(
        pytester, "def test_other(): pass", "-p", "xdist", "-n", "2", "-k", "not other"
    )
    assert result.ret != 0
    result.stdout.fnmatch_lines(
        [
            "*TESTS THAT DID NOT RUN, AND THAT IS A FAILURE HERE*",
            "test_a_whole_file.py: skipped as a whole",
            "test_expected_to_fail.py::test_it: skipped",
            "test_lacking_a_program.py::test_it: *not installed: no-such-program*",
            "test_skipped.py::test_it: *because",
            "test_skipped_from_within.py::test_it: *because",
            "test_*.py::test_other: deselected",
        ]
    )
    result.stdout.no_fnmatch_line("*test_that_runs: *")


@pytest.mark.slow
def test_strictly_a_whole_suite_in_two_processes_passes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMDP_STRICT", "1")
    result = outcome(pytester, "def test_other(): pass", "-p", "xdist", "-n", "2")
    assert result.ret == 0
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*DID NOT RUN*")
