"""Does the engine do what it did, step by step, over the eventful logs of the corpus?"""

from __future__ import annotations

import pytest

from tests.golden_corpus import digests, every_story, known

pytestmark = pytest.mark.slow

STORIES = every_story()


def test_has_the_corpus_a_record_of_every_story() -> None:
    assert known().keys() == STORIES.keys(), "python -m tests.golden records what is new"


@pytest.mark.parametrize("name", STORIES)
def test_every_step_of_a_story_is_what_was_recorded(name: str) -> None:
    """Releases, what is in force, charges and saved rows, through saves, kills and epochs."""
    now, before = digests(STORIES[name]).split(), known().get(name, "").split()
    assert before, f"no record of {name!r}: python -m tests.golden adds what is new"
    wrong = [at for at, pair in enumerate(zip(now, before, strict=True)) if len(set(pair)) > 1]
    assert wrong == [], f"compare python -m tests.golden_corpus {name!r} with the commit before"
