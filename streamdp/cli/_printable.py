"""Foreign text as one line of text can show it: keys, actions, members of a file.

A key is whatever a producer wrote. Printed unchanged, a line break in it forges lines, and an
escape sequence commands the terminal.

1. A character that is not printable (`str.isprintable`: control characters, line and paragraph
   breaks, changes of the writing direction) is shown by its number.
2. Two different keys never look the same: a key that is not plain stands in quotation marks, with
   these and backslashes escaped. The null key is ``(no key)`` without quotation marks.
3. JSON output is for programs and contains everything unchanged.
"""

from __future__ import annotations

NO_KEY = "(no key)"

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_NOT_PLAIN = frozenset(' "\\')
_BYTES = range(0xDC80, 0xDD00)  # where `surrogateescape` puts bytes that are not UTF-8


def printable(text: str) -> str:
    """The text in one line, with nothing that a terminal obeys.

    >>> print(printable("a\\nb \\x1b[2J ü"))
    a\\nb \\u001b[2J ü
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def word(text: str) -> str:
    """The text as one word: in quotation marks unless it is plain.

    >>> print(word("fr"), word("new york"), word("a\\nb"), word(""))
    fr "new york" "a\\nb" ""
    """
    if text and text.isprintable() and text[0] != "(" and _NOT_PLAIN.isdisjoint(text):
        return text
    return '"' + printable(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def key_word(key: bytes | None) -> str:
    """A record's key as a word.

    >>> print(key_word(b"fr"), key_word(None), key_word(b"(no key)"), key_word(b"\\xff"))
    fr (no key) "(no key)" "\\xff"
    """
    return NO_KEY if key is None else word(key.decode(errors="surrogateescape"))


def key_bytes(text: str) -> bytes:
    """A key from the command line, which may hold bytes that are not UTF-8."""
    return text.encode(errors="surrogateescape")


def is_asked(key: bytes | None, asked: str) -> bool:
    """Whether a key was asked for, unchanged or as it is shown."""
    return key == key_bytes(asked) or key_word(key) == asked


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    number = ord(character)
    if number in _BYTES:
        return f"\\x{number - 0xDC00:02x}"
    return _SHORT.get(character) or (f"\\u{number:04x}" if number < 1 << 16 else f"\\U{number:08x}")
