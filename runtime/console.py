"""What a terminal shows of foreign text: data, prompts, responses, names of files."""

import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# control, format (bidirectional overrides, zero width), lone surrogates, private use, line
# separators
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def printable(text: str) -> str:
    r"""The text with what a terminal would act on, or not show,
    as escapes: `\x1b[2J`; \n and \t stay.
    """
    if text.isprintable():
        return text
    hidden = {c for c in set(text) - {"\n", "\t"} if unicodedata.category(c) in HIDDEN}
    return text.translate({ord(c): c.encode("unicode_escape").decode() for c in hidden})


def disarm(error: BaseException | None) -> None:
    """Make the messages of an exception, and of what caused it,
    printable: they may quote a row of data.
    """
    while error is not None:
        error.args = tuple(
            printable(part) if isinstance(part, str) else part for part in error.args
        )
        error = error.__cause__ or error.__context__


@contextmanager
def optional(what: str, say: Callable[[str], None] = print) -> Iterator[None]:
    """What a run can do without, a plot or a card: where it fails,
    a note takes the place of the error.
    """
    try:
        yield
    except Exception as error:  # any: it is a library's, about a name or a disk that nobody foresaw
        say(printable(f"note: without {what}: {type(error).__name__}: {error}"))
