"""What a study leaves: result.json and pictures in studies/results/NAME/, and rows of README.md's table."""

import dataclasses
import json
from pathlib import Path

from studies.claims import STUDIES, Claim, Study
from studies.jobs import ROOT, Job
from studies.measures import IN, OOD, Data, decision, interval
from studies.pictures import save

RESULTS = ROOT / "studies" / "results"
BEGIN, END = "<!-- results: written by studies/decide.py -->", "<!-- end of results -->"
HEAD = ("| study | claim | paper | ours: mean ± 95 % over seeds | verdict | cost | command |\n"
        "|---|---|---|---|---|---|---|\n")


def jobs_of(study: Study, data: Data) -> list[Job]:
    """Every job the study reads, and those they need, each once."""
    jobs = [job for name in study.runs for job in data.jobs(name)]
    samplings = [job for name in study.samplings for job in data.jobs(name, sampling=True)]
    return list(dict.fromkeys([*jobs, *(job.needs for job in samplings if job.needs), *samplings]))


def write(name: str, data: Data, directory: Path = RESULTS) -> dict:
    """Compute the study's numbers, decide its claims, draw its pictures; returns what result.json holds."""
    study, place = STUDIES[name], directory / name
    place.mkdir(parents=True, exist_ok=True)
    claims = []
    for claim in study.claims:
        values = [float(v) for v in claim.numbers(data)]
        mean, half = interval(values)
        claims.append({"claim": claim.text, "paper": claim.paper, "values": values, "mean": mean,
                       "half": half, "verdict": decision(values)})
    runs = {run: {"score": data.heights(run), "score_ood": data.heights(run, OOD), "end": data.ends(run, IN),
                  "end_ood": data.ends(run, OOD)} for run in study.runs}
    cost = sum(job.record()["seconds"] for job in jobs_of(study, data))
    budget = dataclasses.asdict(data.budget)
    result = {"study": name, "title": study.title, "seeds": data.seeds, "budget": budget, "claims": claims,
              "runs": runs, "core_seconds": cost}
    (place / "result.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for file, draw in study.pictures.items():
        save(draw(data, study.runs), place / file)
    return result


def table(directory: Path = RESULTS) -> str:
    """The table of studies/README.md from every result.json there is; studies that have none say so."""
    lines = []
    for name, study in STUDIES.items():
        file = directory / name / "result.json"
        result = json.loads(file.read_text()) if file.exists() else None
        lines += [_row(name, place, claim, result) for place, claim in enumerate(study.claims)]
    return HEAD + "\n".join(lines) + "\n"


def _row(name: str, place: int, claim: Claim, result: dict | None) -> str:
    """One claim; the study's name, cost and command stand in its first row."""
    command = f"`python -m studies {name}`"
    if result is None:
        ours, decided, cost = "not run yet", "–", "–"
    else:
        number = result["claims"][place]
        if number["claim"] != claim.text:
            raise ValueError(f"studies/results/{name} holds other claims than claims.py: run the study again")
        ours = f"{number['mean']:+.3f} ± {number['half']:.3f} ({result['seeds']} seeds)"
        decided, cost = f"**{number['verdict']}**", f"{result['core_seconds'] / 60:.0f} core-min"
        command = f"`python -m studies {name} --seeds {result['seeds']}`"
    if place:
        name = cost = command = ""
    return f"| {name} | {claim.text} | {claim.paper} | {ours} | {decided} | {cost} | {command} |"


def update(page: Path = ROOT / "studies" / "README.md", directory: Path = RESULTS) -> None:
    """Put the table between the two markers of studies/README.md."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} has lost its markers {BEGIN!r} and {END!r}")
    page.write_text(f"{before}{BEGIN}\n{table(directory)}{END}{after}")


def text(result: dict) -> str:
    """A result for the console."""
    lines = [f"\n{result['study']}: {result['title']}"]
    for c in result["claims"]:
        number = f"{c['mean']:+.4f} ± {c['half']:.4f}"
        lines.append(f"  {c['verdict']:9} {number}  {c['claim']}  (paper: {c['paper']})")
    return "\n".join(lines)
