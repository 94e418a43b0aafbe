"""Checks what a program hands to the engines of papers: types only."""

from streamdp.core.errors import InvalidConfig


def check_learner(learner: object, kind: type, *, recipe: str) -> None:
    """Refuse what no recipe makes, such as a recipe's name."""
    if not isinstance(learner, kind):
        expected, got = f"what a recipe makes, such as {recipe}", type(learner).__name__
        raise InvalidConfig("learner", "no learner for this engine", expected=expected, got=got)


def check_choice(choice: object, kind: type) -> None:
    """Refuse what no call of `choose` returned."""
    if not isinstance(choice, kind):
        got = type(choice).__name__
        raise InvalidConfig("choice", "no choice", expected="what `choose` returned", got=got)
