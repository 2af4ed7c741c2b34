r"""Evaluation (Sec. 5.1): Pass@1 and Avg@k per data_source, by the engine and the verifier of training.

    python eval.py --model runs/default/model --data test.jsonl
    torchrun --shutdown-timeout 600 --nproc_per_node=8 eval.py --model DIR --data valid.parquet \
        arc_c.parquet --avg_samples 32 --output runs/A/eval
    python -m tools.compare runs/A/eval/scores.json runs/B/eval/scores.json

With --output every response is kept in responses.jsonl, and a command that is repeated generates only what is
missing. A record is one response as plain values, see `respond`.
"""

import json
import os
from collections import defaultdict
from dataclasses import asdict, dataclass, fields, make_dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from config import Config
from data import Question, load_questions, load_tokenizer, sample_seed, unreadable
from model import model_config
from reward import SUCCESS, Grader, last_box, make_verifier
from rollout import make_engine, roll_out
from runtime import ranks
from runtime.flags import knob, parse_flags
from runtime.tables import read_jsonl
from worlds.arithmetic import JUDGES
from worlds.benchmarks import SMALL, benchmark, statistics

SAVE_EVERY = 2048  # responses generated between two writes of --output


def validate(engine, grader: Grader, tests: list[Question], config: Config) -> dict[str, float]:
    """`val/<score>/<source>` from one response to each test question (a collective).

    The seeds depend on nothing but the question: steps and models are compared on the same random numbers.
    """
    scores = means(respond(engine, grader, [(q, 0) for q in tests], config))
    return {f"val/{name}": value for name, value in scores.items()}


def respond(engine, grader: Grader, wanted: list[tuple[Question, int]], config: Config,
            seed: int = 0, texts: bool = False) -> list[dict]:
    """A record of the response to every (question, sample number), with its text if asked (a collective)."""
    seeds = [[sample_seed("eval", seed, q.id, i)] for q, i in wanted]
    rolled = roll_out(engine, grader, [q for q, _ in wanted], seeds, config.eval_temperature)
    judges = JUDGES if config.reward.startswith("worlds.arithmetic:") else {}
    records = []
    for (question, number), [t] in zip(wanted, rolled, strict=True):
        record = {"source": question.source, "question": _key(question), "sample": number, "reward": t.reward,
                  "success": t.reward > SUCCESS, "length": len(t.token_ids), "truncated": not t.finished}
        text = grader.text(t.token_ids) if judges or texts else ""
        if config.reward == "math" and config.grader == "both":
            record["judged"] = {"official": (t.also or {}).get("official", 0.0)}
        if judges:
            record["judged"] = {name: judge(question.text, text) for name, judge in judges.items()}
        if texts:
            record |= {"text": question.text, "gold": question.answer, "response": text}
        if texts and config.reward == "math" and config.require_box:
            record["answer"] = last_box(grader.piece(question, t.token_ids) or "")
        records.append(record)
    return records


def means(records: list[dict]) -> dict[str, float]:
    """`pass_at_1/<source>` (share of successes; Avg@k for k samples), `reward`, `length` and so on."""
    values = defaultdict(list)
    for r in records:
        scores = {"pass_at_1": r["success"]} | {name: r[name] for name in ("reward", "length", "truncated")}
        for name, value in (scores | r.get("judged", {})).items():
            values[f"{name}/{r['source']}"].append(value)
    return {name: float(np.mean(v)) for name, v in values.items()}


# ---- --output: every response on disk ---------------------------------------------------------------


def respond_and_keep(directory: str, settings: dict, engine, grader: Grader,
                     wanted: list[tuple[Question, int]], config: Config, seed: int) -> list[dict]:
    """`respond`, but what `directory` holds is not generated again; the rest is added to it (a collective).

    ValueError where it holds responses made with other settings, or by other weights.
    """
    path, main = Path(directory) / "responses.jsonl", ranks.rank() == 0
    records, changed = ranks.gather(_open(path, settings) if main else None)[0]
    if changed:
        raise ValueError(f"{directory} holds responses that were made with other settings: {changed}. "
                         "Choose another --output.")
    missing = [(q, i) for q, i in wanted if (_key(q), i) not in records]
    done = len(wanted) - len(missing)
    for start in range(0, len(missing), SAVE_EVERY):
        new = respond(engine, grader, missing[start : start + SAVE_EVERY], config, seed, texts=True)
        records |= {(r["question"], r["sample"]): r for r in new}
        if main:
            with open(path, "a") as file:
                file.write("".join(json.dumps(r) + "\n" for r in new))
            print(f"{directory}: {done + start + len(new)} of {len(wanted)} responses", flush=True)
    return [records[_key(q), i] for q, i in wanted]


def _open(path: Path, settings: dict) -> tuple[dict, dict]:
    """The records saved so far by (question, sample), and the settings that have changed since."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = path.with_name("settings.json")
    old = json.loads(about.read_text()) if about.exists() else settings
    changed = {n: f"{old.get(n)!r} -> {value!r}" for n, value in settings.items() if old.get(n) != value}
    if not changed:
        about.write_text(json.dumps(settings, indent=1))
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # a run that was killed leaves half a line
    path.with_suffix(".tmp").write_text(whole)
    os.replace(path.with_suffix(".tmp"), path)
    return {(r["question"], r["sample"]): r for r in read_jsonl(path)}, changed


def _key(question: Question) -> str:
    """Names a question by what is asked, of which benchmark, and the right answer."""
    parts = repr((question.source, question.prompt_ids.tolist(), question.answer))
    return blake2b(parts.encode(), digest_size=8).hexdigest()


# ---- the command ------------------------------------------------------------------------------------

SHARED = (  # knobs that training has too
    "max_prompt_length", "max_response_length", "eval_temperature", "seed", "reward", "require_box", "grader",
    "prompt_template", "response_prefix", "engine", "dtype", "rollout_memory", "rope_theta",
    "max_position_embeddings", "trust_remote_code")
DEFAULTS = {"max_prompt_length": 1024, "max_response_length": 8192, "rollout_memory": 0.8}  # other than there
FREE = ("data", "samples", "avg_samples", "output", "engine", "rollout_memory")  # no response depends on them


@dataclass
class _Own:
    model: str = knob("", "Hugging Face directory.")
    data: list[str] = knob([], "Parquet or JSONL files in the verl-LUFFY layout.")
    samples: int = knob(1, "Responses per question: 1 is Pass@1, k is Avg@k.")
    avg_samples: int = knob(0, "Responses per question of AIME and AMC, by source; 0: as `samples` [32].")
    output: str = knob("", "Directory of scores.json and responses.jsonl; one that is there is continued.")


EvalConfig = make_dataclass(
    "EvalConfig",
    [(f.name, f.type, knob(DEFAULTS.get(f.name, f.default), **f.metadata))
     for f in fields(Config) if f.name in SHARED],
    bases=(_Own,))


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Evaluate a model directory from the command line: print all scores, return the means per source."""
    e = EvalConfig(**parse_flags(EvalConfig, argv, __doc__.split("\n")[0]))
    if not e.model or not e.data or e.samples < 1 or e.avg_samples < 0:
        raise SystemExit("eval.py needs --model DIR, --data FILE and --samples of at least 1 (see --help)")
    device = ranks.setup(hang_timeout=0)  # many samples of long responses may take hours
    config = Config(model=e.model, train_files=e.data, **{name: getattr(e, name) for name in SHARED})
    tokenizer = load_tokenizer(config, e.model)
    questions, counts = load_questions(e.data, config, tokenizer)
    if config.reward == "math" and all(q.source.startswith("arithmetic") for q in questions):
        config.reward = "worlds.arithmetic:reward"
    _fit_positions(config, questions)
    with make_verifier(config) as verifier:
        dropped, malformed = unreadable(questions, verifier.check_golds)
        counts["answers unreadable"] = len(dropped)
        counts |= {"answers malformed": malformed} if malformed else {}
        readable = [q for q in questions if q.id not in dropped]
        small = {q.source for q in readable if e.avg_samples and benchmark(q.source) in SMALL}
        samples = {q.source: e.avg_samples if q.source in small else e.samples for q in readable}
        wanted = [(q, i) for q in readable for i in range(samples[q.source])]
        engine = make_engine(config, e.model, tokenizer.eos_token_id, device)
        grader = Grader(config, tokenizer, verifier)
        if e.output:
            records = respond_and_keep(e.output, _settings(e, config), engine, grader, wanted, config, e.seed)
        else:
            records = respond(engine, grader, wanted, config, e.seed, texts=True)
    scores = means(records)
    if ranks.rank() == 0:
        about = {"model": e.model, "max_response_length": config.max_response_length, "questions": counts}
        print(text := json.dumps(about | scores | statistics(records), indent=1))
        if e.output:
            (Path(e.output) / "scores.json").write_text(text)
    ranks.barrier()
    return scores


def _fit_positions(config: Config, questions: list[Question]) -> None:
    """Cut the limits to the longest prompt and the positions that it leaves; ValueError if it leaves none."""
    config.max_prompt_length = longest = max(len(q.prompt_ids) for q in questions)
    positions = model_config(config, config.model).max_position_embeddings
    if longest >= positions:
        raise ValueError(
            f"no room for a response: the longest prompt takes {longest} of {positions} positions. Lower "
            "--max_prompt_length (longer prompts are dropped), or set --max_position_embeddings")
    config.max_response_length = min(config.max_response_length, positions - longest)


def _settings(e, config: Config) -> dict:
    """Whatever a response and its reward depend on, the model by name, size and time of its files."""
    ours = ("responses.jsonl", "settings.json", "scores.json", "README.md")  # no part of the model
    files = [f for f in sorted(Path(e.model).glob("*")) if f.is_file() and f.name not in ours]
    settings = {name: value for name, value in asdict(e).items() if name not in FREE}
    settings |= {"reward": config.reward, "max_response_length": config.max_response_length}
    return settings | {"files": [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in files]}


if __name__ == "__main__":
    ranks.run(main)
