r"""Evaluation (Sec. 5.1): Pass@1 and Avg@k per data_source, by the engine and the verifier of training.

    python eval.py --model runs/default/model --data test.jsonl --limit 100
    torchrun --shutdown-timeout 600 --nproc_per_node=8 eval.py --config configs/own-model.yaml \
        --model DIR --data valid.parquet --avg_samples 32 --output runs/A/eval
    python -m tools.compare runs/A/eval runs/B/eval

With --output responses are kept every 30 s, as they end (hf: in batches), a file a rank; responses.jsonl has
them all at the end. A command that is repeated generates only what is missing. A record: see `_record`.
"""

import json
from collections import Counter, defaultdict
from concurrent.futures import wait
from dataclasses import asdict, dataclass, fields, make_dataclass
from hashlib import blake2b
from pathlib import Path

from config import Config
from runtime.flags import knob, or_refuse, out_of_range, parse_flags

SHARED = ("max_prompt_length", "max_response_length", "eval_temperature", "eval_questions", "seed", "reward",
          "require_box", "grader", "verify_timeout", "prompt_template", "response_prefix", "engine", "dtype",
          "rollout_tp", "rollout_memory", "rope_theta", "max_position_embeddings")
DEFAULTS = {"max_prompt_length": 1024, "max_response_length": 8192, "rollout_memory": 0.8}  # not as training
FREE = ("data", "val_files", "samples", "avg_samples", "output", "engine", "rollout_memory", "rollout_tp",
        "eval_questions", "limit")  # no response, no reward depends on them


@dataclass
class _Own:
    model: str = knob("", "Hugging Face directory.")
    data: list[str] = knob([], "Parquet or JSONL files in the verl-LUFFY layout.")
    val_files: list[str] = knob([], "The same by training's name, where no data are given.")
    limit: int = knob(0, "The first so many questions of each source; 0: as eval_questions.", 0)
    samples: int = knob(1, "Responses per question: 1 is Pass@1, k is Avg@k; as many as rows repeat it.", 1)
    avg_samples: int = knob(0, "Responses per question of AIME and AMC, by source; 0: as `samples` [32].", 0)
    output: str = knob("", "Directory of scores.json and responses.jsonl; one that is there is continued.")


EvalConfig = make_dataclass("EvalConfig", bases=(_Own,), fields=[
    (f.name, f.type, knob(DEFAULTS.get(f.name, f.default), **f.metadata))
    for f in fields(Config) if f.name in SHARED])


def parse_command(argv: list[str] | None = None) -> tuple[EvalConfig, Config]:
    """The command's knobs, and the same as training's; SystemExit or ValueError say what is wrong."""
    e = EvalConfig(**parse_flags(EvalConfig, argv, __doc__.split("\n")[0], Config))
    for problem in out_of_range(e):
        raise ValueError(problem)
    if not e.model or not (e.data or e.val_files):
        raise SystemExit("eval.py needs --model DIR and --data FILE (see --help)")
    return e, Config(model=e.model, train_files=e.data or e.val_files, **{n: getattr(e, n) for n in SHARED})


COMMAND = or_refuse(parse_command) if __name__ == "__main__" else None  # before seconds of imports

import numpy as np

from data import Question, first_of_each_source, load_questions, load_tokenizer, sample_seed, unreadable
from model import model_config
from reward import SUCCESS, Grader, last_box, make_verifier
from rollout import HFEngine, make_engine
from runtime import ranks
from runtime.claim import check_shared
from runtime.faults import say, watchdog
from runtime.responses import Kept, made_with, open_kept
from worlds.arithmetic import JUDGES
from worlds.benchmarks import SMALL, benchmark, of_built_in_world, samples_of, statistics

TEXTS = ("text", "gold", "response")  # what of a record only --output keeps
LAST_VERDICTS = 5.0  # seconds for them, after an interrupt


def validate(engine, grader: Grader, tests: list[Question], config: Config) -> dict[str, float]:
    """`val/<score>/<source>` from one response to each test question (a collective).

    The seeds depend on nothing but the question: steps and models are compared on the same random numbers.
    """
    scores = means(respond(engine, grader, [(q, 0) for q in tests], config))
    return {f"val/{name}": value for name, value in scores.items()}


def respond(engine, grader: Grader, wanted: list[tuple[Question, int]], config: Config,
            seed: int = 0, kept: Kept | None = None) -> list[dict]:
    """A record, without its texts, of the response to every (question, sample number) (a collective); `kept`
    gets those of this rank, texts included, as the responses end."""
    kept = kept or Kept(shown=False)

    def work(share: list[int]) -> list[dict]:
        """The records of this rank's share."""
        mine, ended, verdicts, records = [wanted[i] for i in share], {}, [], {}

        def on_finish(index: int, trajectory) -> None:
            if ranks.rank() % config.rollout_tp == 0:  # else another rank's count
                ended[index] = trajectory, (pending := grader.submit(mine[index][0], trajectory.token_ids))
                verdicts.extend(pending.under_way())
                if kept.due(len(trajectory.token_ids)):
                    settle()

        def settle() -> None:
            """Hand on the records of what has ended and has its verdict."""
            done = {i: ended.pop(i) for i in [*ended] if ended[i][1].done()}
            new = {i: _record(*mine[i], trajectory, pending.rewards()[0], grader, kept.shown)
                   for i, (trajectory, pending) in done.items()}
            kept.write(list(new.values()))
            records.update({i: {n: v for n, v in r.items() if n not in TEXTS} for i, r in new.items()})

        kept.begin(len(mine))
        try:
            seeds = [sample_seed("eval", seed, q.id, i) for q, i in mine]
            made = engine.generate([q.prompt_ids for q, _ in mine], seeds, config.eval_temperature,
                                   config.max_response_length, on_finish)
            watchdog.wait(verdicts)
        finally:  # what has its verdict, soon, is kept, whatever ends the rest
            wait(verdicts, LAST_VERDICTS)
            settle()
            kept.bar.close()
        if not any(r["reward"] for r in records.values()):
            grader.warn([q for q, _ in mine], [[t] for t in made])
        return [records.get(i) for i in range(len(mine))]

    return ranks.map_shares([1] * len(wanted), work, config.rollout_tp)


def _record(question: Question, number: int, trajectory, rewards: dict[str, float], grader: Grader,
            texts: bool) -> dict:
    """One response as plain values, by its question, sample number and named rewards."""
    reward, length, config = rewards["score"], len(trajectory.token_ids), grader.config
    record = {"source": question.source, "question": _key(question), "sample": number, "reward": reward,
              "success": reward > SUCCESS, "length": length, "truncated": not trajectory.finished,
              "timeout": "timeouts" in rewards}
    judges = JUDGES if config.reward.startswith("worlds.arithmetic:") else {}
    text = grader.text(trajectory.token_ids) if judges or texts else ""
    if judges:
        record["judged"] = {name: judge(question.text, text) for name, judge in judges.items()}
    if texts and config.reward == "math" and config.require_box:
        record["answer"] = last_box(grader.piece(question, trajectory.token_ids) or "")
    return record | dict(zip(TEXTS, (question.text, question.answer, text))) if texts else record


def means(records: list[dict]) -> dict[str, float]:
    """`pass_at_1/<source>` (share of successes; Avg@k for k samples), `reward`, `length` and so on."""
    values = defaultdict(list)
    for r in records:
        named = {name: r.get(name, 0) for name in ("reward", "length", "truncated", "timeout")}
        for name, value in ({"pass_at_1": r["success"]} | named | r.get("judged", {})).items():
            values[f"{name}/{r['source']}"].append(value)
    asked = Counter(r["source"] for r in records)
    if any(len(v) != asked[name.partition("/")[2]] for name, v in values.items()):
        raise ValueError("some responses were not judged as others were: choose another --output")
    return {name: float(np.mean(v)) for name, v in values.items()}


def respond_and_keep(directory: str, settings: dict, engine, grader: Grader,
                     wanted: list[tuple[Question, int]], config: Config, seed: int) -> list[dict]:
    """`respond`, but what `directory` holds is not generated again (a collective).

    The records, texts included, on rank 0, else []. ValueError where they were made with other settings.
    """
    main, keys = ranks.rank() == 0, [(_key(q), i) for q, i in wanted]
    records, changed = open_kept(Path(directory), settings, keys) if main else ({}, {})
    there, changed = ranks.gather((set(records), changed))[0]
    if changed:
        raise ValueError(f"{directory} holds responses that were made with other settings: {changed}. "
                         "Choose another --output.")
    if missing := [pair for pair, key in zip(wanted, keys) if key not in there]:
        respond(engine, grader, missing, config, seed, Kept(directory))
        records = open_kept(Path(directory), settings, keys)[0] if main else {}
    return [records[key] for key in keys] if main else []


def _key(question: Question) -> str:
    """Names a question by what is asked, of which benchmark, and the right answer."""
    parts = repr((question.source, question.prompt_ids.tolist(), question.answer))
    return blake2b(parts.encode(), digest_size=8).hexdigest()


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Evaluate a model directory from the command line: print all scores, return the means per source."""
    e, config = COMMAND or parse_command(argv)
    device = ranks.setup(hang_timeout=0)  # many samples of long responses may take hours
    check_shared(e.output)
    tokenizer = load_tokenizer(config, e.model)
    questions, counts = load_questions(config.train_files, config, tokenizer)
    if config.reward == "math" and of_built_in_world(questions):
        config.reward = "worlds.arithmetic:reward"
    _fit_positions(config, questions)
    with make_verifier(config) as verifier:
        dropped, malformed = unreadable(questions, verifier.check_golds)
        counts |= {"answers unreadable": len(dropped), "answers malformed": malformed}
        readable = [q for q in questions if q.id not in dropped]
        readable = first_of_each_source(readable, e.limit or e.eval_questions)
        times = {s: min(q.times for q in readable if q.source == s) for s in {q.source: 0 for q in readable}}
        samples = samples_of(times, e.samples, e.avg_samples)
        if e.avg_samples and not any(benchmark(s) in SMALL for s in samples) and ranks.rank() == 0:
            say("warning: --avg_samples is for AIME and AMC, and none is here; --samples is for all")
        wanted = [(q, i) for q in readable for i in range(samples[q.source])]
        engine = make_engine(config, e.model, tokenizer.eos_token_id, device)
        if isinstance(engine, HFEngine) and device.type == "cpu":  # it reports whole batches: small ones
            engine.batch_size = max(16, 8192 // config.max_response_length)
        grader = Grader(config, tokenizer, verifier)
        watchdog.enter("evaluation")
        try:
            if e.output:
                same = {"reward": config.reward, "max_response_length": config.max_response_length}
                settings = made_with({n: v for n, v in asdict(e).items() if n not in FREE} | same)
                records = respond_and_keep(e.output, settings, engine, grader, wanted, config, e.seed)
            else:
                records = respond(engine, grader, wanted, config, e.seed, Kept())
        except ranks.Interrupted:
            if ranks.rank() == 0:
                say(f"interrupted: {e.output or 'nothing'} is kept, the same command goes on from there")
            return {}
    scores = ranks.gather(means(records))[0]
    if ranks.rank() == 0:
        about = {"model": e.model, "max_response_length": config.max_response_length, "questions": counts}
        if late := sum(r.get("timeout", False) for r in records):
            say(f"warning: {late} responses score 0, as grading them ran out of time (--verify_timeout)")
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
        raise ValueError(f"no room for a response: the longest prompt takes {longest} of {positions} "
                         "positions. Lower --max_prompt_length, or set --max_position_embeddings")
    config.max_response_length = min(config.max_response_length, positions - longest)


if __name__ == "__main__":
    ranks.run(main)
