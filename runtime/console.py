"""Show foreign text on a terminal safely: data, prompts, responses, names of files."""

import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Unicode's categories of what a terminal acts on or hides: control, format (bidirectional
# overrides, zero width), lone surrogates, private use, line and paragraph separators.
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def printable(text: str) -> str:
    r"""Return the text with escapes for whatever a terminal would act on, or not show.

    An escape looks like the beginning of `\x1b[2J`; \n and \t stay.
    """
    if text.isprintable():
        return text
    hidden = {c for c in set(text) - {"\n", "\t"} if unicodedata.category(c) in HIDDEN}
    return text.translate({ord(c): c.encode("unicode_escape").decode() for c in hidden})


@contextmanager
def optional(what: str, say: Callable[[str], None] = print) -> Iterator[None]:
    """Print a note in place of the error where something fails that a run can do without.

    `what` names it in the note: a plot, or a card.
    """
    try:
        yield
    except Exception as error:  # libraries stumble over names and disks that nobody foresaw
        say(printable(f"note: without {what}: {type(error).__name__}: {error}"))
