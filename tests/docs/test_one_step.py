"""docs/one_step.ipynb: its cells run as they stand and print the numbers that are stored in it.

To store them anew: `jupyter nbconvert --to notebook --execute --inplace docs/one_step.ipynb`.
"""

import io
import json
import re
import sys
from contextlib import redirect_stdout

import matplotlib.pyplot as plt
import pytest
from conftest import ROOT

CELLS = json.loads((ROOT / "docs/one_step.ipynb").read_text())["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
NUMBER = re.compile(r"[-+]?\b\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def words_and_numbers(text: str) -> tuple[list[str], list[float]]:
    """A printed text without its numbers and spaces, and its numbers."""
    return NUMBER.sub("#", text).split(), [float(number) for number in NUMBER.findall(text)]


def stored(cell: dict) -> str:
    return "".join("".join(o["text"]) for o in cell["outputs"] if o.get("name") == "stdout")


@pytest.fixture(scope="module")
def printed():
    """What each code cell prints when all run in order by plain `exec` in the notebook's folder."""
    texts, names = [], {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT / "docs")
        patch.setattr(sys, "path", [*sys.path])
        plt.switch_backend("agg")
        for number, cell in enumerate(CODE):
            with redirect_stdout(io.StringIO()) as out:
                exec(compile("".join(cell["source"]), f"code cell {number}", "exec"), names)
            texts.append(out.getvalue())
        plt.close("all")
    return texts


def test_the_cells_print_what_is_stored(printed):
    """Every word of every cell is the stored one, and every number is within 1e-4 of it."""
    for cell, text in zip(CODE, printed, strict=True):
        words, numbers = words_and_numbers(text)
        kept_words, kept_numbers = words_and_numbers(stored(cell))
        assert words == kept_words
        assert numbers == pytest.approx(kept_numbers, rel=0, abs=1.01e-4)
    assert sum(len(words_and_numbers(text)[1]) for text in printed) > 500
