"""The notebook runs, the two changes of docs/change-it.md work, and commands name real flags."""

import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from eval import EvalConfig

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NUMBER = re.compile(r"[-+]?\b\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def blocks(page, language=r"\w*"):
    """The code blocks of a page."""
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", page.read_text(), flags=re.M | re.S)


def test_the_notebook_prints_what_is_stored_in_it(monkeypatch):
    """Its cells, run in order, print the stored words, and the stored numbers within 1e-4."""
    monkeypatch.chdir(ROOT)
    plt.switch_backend("agg")
    names = {}
    for cell in json.loads(Path("docs/one_step.ipynb").read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        with redirect_stdout(io.StringIO()) as out:
            exec("".join(cell["source"]), names)
        printed = out.getvalue()
        stored = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", stored).split()
        numbers = [float(number) for number in NUMBER.findall(stored)]
        found = [float(number) for number in NUMBER.findall(printed)]
        assert found == pytest.approx(numbers, rel=0, abs=1.01e-4)


@pytest.mark.parametrize("number", [0, 1])
def test_a_change_of_the_page_does_what_it_says(number, tmp_path):
    """The page's test fails, its diff applies to exgrpo.py, and then the test passes."""
    page = ROOT / "docs/change-it.md"
    for name in ("exgrpo", "buffer", "loss", "sampler"):
        shutil.copy(ROOT / f"{name}.py", tmp_path)
    (tmp_path / "test_change.py").write_text(blocks(page, "python")[number])

    def run(*command, text=None):
        done = subprocess.run(command, cwd=tmp_path, input=text, text=True, capture_output=True)
        return done.returncode

    test = sys.executable, "-m", "pytest", "test_change.py"
    assert run(*test) == 1
    assert run("git", "apply", text=blocks(page, "diff")[number]) == 0
    assert run(*test) == 0


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_flags_of_commands_are_knobs(page):
    """Each --flag behind train.py or eval.py in a code block is one of theirs."""
    known = {f.name for f in fields(EvalConfig)} | {"config", "help"}
    for block in blocks(page):
        for line in block.replace("\\\n", " ").splitlines():
            _, program, arguments = re.split(r"((?:train|eval)\.py )|$", line, maxsplit=1)
            if program:
                assert set(re.findall(r"--([\w-]+)", arguments.split(" #")[0])) <= known, line
