"""The studies: which claims of the paper are put to the test, on which runs, and how each claim becomes a number.

Everything here was fixed before the runs, but for what studies/README.md names as changed since. A claim's number is made
per seed and is positive where the claim holds; the rule of the verdict is in measures.py. "Score" means the mean height of the
validation curve of Pass@1 (measures.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from studies import pictures
from studies.jobs import RUNS, Budget, Job
from studies.measures import IN, OOD, at_equal, curve, end, mean_over, pairs, score
from studies.responses import (
    agreement,
    bucket_auc,
    columns,
    median_gap,
    shortcut_gap,
    shortness,
    smallest_gap,
    validity,
)
from worlds.arithmetic import World

TRAIN_SIZE = World.train_size


@dataclass
class Data:
    """The finished jobs of a study, seed by seed."""

    seeds: int
    budget: Budget
    _read: dict = field(default_factory=dict, repr=False)

    def jobs(self, name: str, sampling: bool = False) -> list[Job]:
        return [Job(name, seed, self.budget, sampling) for seed in range(self.seeds)]

    def rows(self, name: str) -> list[list[dict]]:
        """Metrics of a run, a list per seed."""
        if name not in self._read:
            self._read[name] = [job.rows() for job in self.jobs(name)]
            self._check_base(name)
        return self._read[name]

    def _check_base(self, name: str) -> None:
        """ValueError unless runs from one base model begin with one validation: another type of machine builds another model."""
        def base(run: str) -> list:
            return [RUNS[run].get(knob) for knob in ("base_steps", "reward", "dtype")]

        starts = {run: [rows[0][IN] for rows in self._read[run]] for run in RUNS if run in self._read and base(run) == base(name)}
        if len({start for seeds in starts.values() for start in seeds}) > 1:
            raise ValueError(f"runs with different base models are no pairs; they began with Pass@1 {starts}: make them again "
                             "on one machine with --fresh")

    def samples(self, name: str) -> list[dict]:
        """Columns of a sampling pass, one per seed."""
        if ("samples", name) not in self._read:
            self._read["samples", name] = [columns(job.result()) for job in self.jobs(name, sampling=True)]
        return self._read["samples", name]

    def scores(self, name: str, metric: str = IN) -> list[float]:
        return [score(rows, self.budget.steps, metric) for rows in self.rows(name)]

    def ends(self, name: str, metric: str = IN) -> list[float]:
        return [end(rows, metric) for rows in self.rows(name)]


@dataclass(frozen=True)
class Claim:
    """One statement, what the paper reports for it, and its number: per seed, positive where the statement holds."""

    text: str
    paper: str
    measure: Callable[[Data], list[float]]


@dataclass(frozen=True)
class Study:
    """A figure or table of the paper."""

    title: str
    claims: tuple[Claim, ...]
    pictures: dict[str, Callable[[Data], object]]  # file name -> function that draws it
    runs: tuple[str, ...] = ()
    samplings: tuple[str, ...] = ()


def beats(a: str, b: str, text: str, paper: str, metric: str = IN, at_end: bool = False) -> Claim:
    """The claim that run `a` has a higher score than run `b` (or a higher end)."""
    def measure(data: Data) -> list[float]:
        of = data.ends if at_end else data.scores
        return pairs(of(a, metric), of(b, metric))

    return Claim(text, paper, measure)


def equal(what: str, metric: str) -> Callable[[Data], list[float]]:
    return lambda data: [at_equal(what, a, b, metric) for a, b in zip(data.rows("exgrpo"), data.rows("on_policy"))]


def of_samples(name: str, function: Callable[[dict], float]) -> Callable[[Data], list[float]]:
    return lambda data: [function(samples) for samples in data.samples(name)]


def training(metric: str, a: str, b: str, first: float = 0.0, last: float = 1.0) -> Callable[[Data], list[float]]:
    """Difference of two runs' means of a training metric over a stretch of the run."""
    return lambda data: pairs(*[[mean_over(rows, metric, first, last) for rows in data.rows(name)] for name in (a, b)])


def _weak_gain(data: Data, name: str, sign: int) -> list[float]:
    """What the weak base gains from the start to the end, less 5 points (or 5 points less that): below it is a stall."""
    return [sign * (end(rows) - curve(rows, IN)[1][0] - 0.05) for rows in data.rows(name)]


def _unharmed(data: Data, metric: str) -> list[float]:
    """0.02 plus what a run in bfloat16 scores above one in float32."""
    return [0.02 + d for d in pairs(data.scores("bfloat16", metric), data.scores("exgrpo", metric))]


def _seen(rows: list[dict]) -> float:
    """Buffered and retired questions at the end, as a share of the training questions."""
    return sum(curve(rows, f"buckets/{name}")[1][-1] for name in ("questions", "retired")) / TRAIN_SIZE


ABLATIONS = {  # run -> (its name in Table 6, the paper's in-distribution average)
    "no_question_selection": ("no question selection", 46.7), "no_trajectory_selection": ("no trajectory selection", 46.3),
    "no_selection": ("neither selection", 46.1), "highest_entropy": ("highest entropy", 46.0),
    "no_shaping": ("no shaping", 41.2), "no_importance_correction": ("no importance correction", 47.1),
    "rho_25": ("ρ = 0.25", 46.4), "rho_75": ("ρ = 0.75", 44.8), "on_policy": ("on-policy", 45.3)}
SAMPLERS = {"sigma_05": ("σ = 0.5", "46.2"), "sigma_15": ("σ = 1.5", "46.2"), "mu_25": ("μ = 0.25", "46.3"),
            "accuracy_scale": ("accuracy scale", "not compared")}
SHAPINGS = {"beta_003": "β = 0.03", "beta_03": "β = 0.3", "beta_1": "β = 1", "no_shaping": "no shaping"}

STUDIES = {
    "fig1a": Study(
        "Which questions are worth training on (Masked GRPO, Eq. 14)",
        (beats("medium", "easy", "Medium only beats Easy only", "42.3 > 41.1"),
         beats("medium", "hard", "Medium only beats Hard only", "42.3 > 41.6"),
         beats("on_policy", "medium", "the full set beats Medium only", "45.3 > 42.3")),
        {"fig1a.png": partial(pictures.scores, names=("easy", "medium", "hard", "on_policy"))},
        ("easy", "medium", "hard", "on_policy")),
    "fig1b": Study(
        "Entropy of right responses: valid against flawed chains, by difficulty (with fig1c)",
        (*(Claim(f"valid chains have lower entropy in every bucket ({where}{'' if shortcuts else ', shortcuts left out'}): "
                 "the smallest of the three gaps, in nats", "0.04, 0.05, 0.06",
                 of_samples(name, partial(smallest_gap, shortcuts=shortcuts)))
           for name, where in (("base", "base model"), ("early", "a third into on-policy training"))
           for shortcuts in (True, False)),
         Claim("entropy tells flawed from valid chains better than perplexity (difference of AUC)", "better, App. F.3",
               of_samples("early", lambda s: bucket_auc(s, "entropy") - bucket_auc(s, "nll"))),
         Claim("and better than length alone (control, difference of AUC)", "–",
               of_samples("early", lambda s: bucket_auc(s, "entropy") - bucket_auc(s, "length"))),
         *(Claim(f"right responses to Medium questions have lower entropy than to {other} ones (medians, nats)",
                 "Medium lowest, Fig. 1c", of_samples("early", partial(median_gap, other=other)))
           for other in ("Easy", "Hard"))),
        {"fig1b.png": pictures.entropy_bars, "fig1c.png": pictures.entropy_densities},
        samplings=("base", "early")),
    "table12": Study(
        "Shortcuts and the snowball effect (App. F.4); a shortcut here is an answer without a step, so never a valid chain",
        (Claim("right shortcut responses have higher entropy (Medium, base model, nats; nearly by construction)", "0.14 > 0.07",
               of_samples("base", partial(shortcut_gap, measure="entropy", sign=1))),
         Claim("and fewer valid chains (Medium, base model; by construction)", "-8.7 to -11.5 points",
               of_samples("base", partial(shortcut_gap, measure="valid", sign=-1))),
         beats("highest_entropy", "exgrpo", "replaying the highest entropy raises the share of shortcuts", "raises it",
               "val/shortcut/arithmetic"),
         beats("exgrpo", "highest_entropy", "and lowers the share of valid chains", "lowers it", "val/valid/arithmetic")),
        {"table12.png": partial(pictures.curves, names=("exgrpo", "highest_entropy", "on_policy"),
                                metrics=("val/shortcut/arithmetic", "val/valid/arithmetic"))},
        ("exgrpo", "highest_entropy", "on_policy"), ("base",)),
    "table1": Study(
        "ExGRPO against on-policy Dr. GRPO",
        (beats("exgrpo", "on_policy", "equal steps, in distribution", "48.3 > 45.3"),
         beats("exgrpo", "on_policy", "equal steps, out of distribution", "58.3 > 56.4", OOD),
         beats("exgrpo", "on_policy", "at the end, in distribution", "48.3 > 45.3", at_end=True),
         beats("exgrpo", "on_policy", "at the end, out of distribution", "58.3 > 56.4", OOD, at_end=True),
         *(Claim(f"equal {words}, {where}", "not reported", equal(what, metric))
           for what, words in (("tokens", "generated tokens"), ("seconds", "wall time"))
           for metric, where in ((IN, "in distribution"), (OOD, "out of distribution")))),
        {"table1.png": partial(pictures.curves, names=("exgrpo", "on_policy"), metrics=(IN, OOD))},
        ("exgrpo", "on_policy")),
    "fig4": Study(
        "A base model too weak for on-policy training; replay from the start",
        (Claim("on-policy stalls: 5 points minus its gain", "collapses, 1.2 to 3.4",
               partial(_weak_gain, name="on_policy_weak", sign=-1)),
         Claim("replay from the start does not: its gain minus 5 points", "rescues it",
               partial(_weak_gain, name="exgrpo_weak", sign=1)),
         beats("exgrpo_weak", "on_policy_weak", "replay scores above on-policy, in distribution", "6.1 > 3.4"),
         beats("exgrpo_weak", "on_policy_weak", "replay scores above on-policy, out of distribution", "30.8 > 1.2", OOD)),
        {"fig4.png": partial(pictures.curves, names=("exgrpo_weak", "on_policy_weak"),
                             metrics=(IN, "reward/pass_at_1_fresh", "rollout/length", "loss/entropy"))},
        ("exgrpo_weak", "on_policy_weak")),
    "fig5": Study(
        "Buffer and retired set during training (with fig6: by ρ, and without question selection)",
        (Claim("at the end about half the questions are buffered or retired: distance of that share inside [1/3, 2/3]",
               "about half", lambda data: [min(_seen(r) - 1 / 3, 2 / 3 - _seen(r)) for r in data.rows("exgrpo")]),
         Claim("more replay retires fewer questions: ρ = 0.25 minus ρ = 0.75, over the run", "our reading of Fig. 6",
               training("buckets/retired", "rho_25", "rho_75")),
         Claim("question selection retires more than uniform replay, over the run", "our reading of Fig. 6",
               training("buckets/retired", "exgrpo", "no_question_selection"))),
        {"fig5.png": partial(pictures.curves, names=("exgrpo",), metrics=("buckets/questions", "buckets/retired")),
         "fig6.png": partial(pictures.curves, names=("exgrpo", "rho_25", "rho_75", "no_question_selection"),
                             metrics=("buckets/questions", "buckets/retired"))},
        ("exgrpo", "rho_25", "rho_75", "no_question_selection")),
    "table6": Study(
        "Ablations (with fig7: validation curves, fig8: entropy)",
        (*(beats("exgrpo", run, f"ExGRPO beats {label}", f"48.3 > {number}") for run, (label, number) in ABLATIONS.items()),
         Claim("without shaping the entropy is below on-policy's early (first quarter, nats)", "drops early, Fig. 8",
               training("loss/entropy", "on_policy", "no_shaping", 0.0, 0.25)),
         Claim("and above it at the end (last quarter, nats)", "ends above, Fig. 8",
               training("loss/entropy", "no_shaping", "on_policy", 0.75, 1.0)),
         Claim("control: early it is also below ExGRPO's, which replays as much, with shaping", "–",
               training("loss/entropy", "exgrpo", "no_shaping", 0.0, 0.25)),
         Claim("control: and above ExGRPO's at the end", "–", training("loss/entropy", "no_shaping", "exgrpo", 0.75, 1.0))),
        {"table6.png": partial(pictures.scores, names=("exgrpo", *ABLATIONS)),
         "fig7.png": partial(pictures.curves, names=("exgrpo", *ABLATIONS), metrics=(IN, OOD)),
         "fig8.png": partial(pictures.curves, names=("exgrpo", "no_shaping", "on_policy"), metrics=("loss/entropy",))},
        ("exgrpo", *ABLATIONS)),
    "table3": Study(
        "The sampler: σ, μ and its scale",
        (*(beats("exgrpo", run, f"σ = 1, μ = 0.5 on counts beats {label}", f"48.3 > {number}" if number[0] == "4" else number)
           for run, (label, number) in SAMPLERS.items()),
         beats("mu_25", "on_policy", "found by looking: μ = 0.25 beats on-policy, in distribution", "not compared"),
         beats("mu_25", "on_policy", "found by looking: μ = 0.25 beats on-policy, out of distribution", "not compared", OOD)),
        {"table3.png": partial(pictures.scores, names=("exgrpo", *SAMPLERS, "on_policy"))}, ("exgrpo", *SAMPLERS, "on_policy")),
    "table7": Study(
        "Putting retired questions back",
        (beats("exgrpo", "reinstate", "putting 10% of the retired questions back every 25 steps hurts", "48.3 > 45.3"),),
        {"table7.png": partial(pictures.curves, names=("exgrpo", "reinstate"), metrics=(IN, "buckets/retired"))},
        ("exgrpo", "reinstate")),
    "table2": Study(
        "Continuous rewards (Sec. 5.3): the share of valid steps, buckets by reward spread",
        (beats("exgrpo_graded", "on_policy_graded", "ExGRPO beats GRPO, mean reward in distribution", "21.7 > 20.0"),
         beats("exgrpo_graded", "on_policy_graded", "and out of distribution", "–", OOD)),
        {"table2.png": partial(pictures.curves, names=("exgrpo_graded", "on_policy_graded"), metrics=(IN, OOD))},
        ("exgrpo_graded", "on_policy_graded")),
    "official": Study(
        "The official code's selection rule, in effect the lowest sum of entropies",
        (Claim("the official rule chooses what the paper's rule chooses more often than chance (share of choices)",
               "not reported", of_samples("early", agreement)),
         Claim("the official rule chooses one of the shortest responses more often than chance (share of choices)",
               "not reported", of_samples("early", shortness)),
         Claim("the paper's rule chooses valid chains more often than the official one", "not reported",
               of_samples("early", partial(validity, against="official"))),
         Claim("the paper's rule chooses valid chains more often than random choice", "follows from Fig. 1b",
               of_samples("early", partial(validity, against="random"))),
         beats("exgrpo", "official", "training with the paper's rule beats the official one", "not reported"),
         beats("official", "no_trajectory_selection", "the official rule beats random choice", "not reported")),
        {"official.png": partial(pictures.curves, names=("exgrpo", "official", "no_trajectory_selection"), metrics=(IN, OOD))},
        ("exgrpo", "official", "no_trajectory_selection"), ("early",)),
    "shaping": Study(
        "The shaping's β: the gradient balance of a mixed group, entropy and learning",
        (*(beats("exgrpo", run, f"β = 0.1 beats {label}", "not reported" if run != "no_shaping" else "48.3 > 41.2")
           for run, label in SHAPINGS.items()),
         Claim("shaping takes from the replayed responses' share of the policy term (no shaping minus β = 0.1)",
               "by construction", training("replay/gradient_share", "no_shaping", "exgrpo")),
         Claim("shaping keeps entropy up: β = 0.1 minus no shaping, over the run (nats)", "Sec. 4.2",
               training("loss/entropy", "exgrpo", "no_shaping"))),
        {"shaping.png": partial(pictures.curves, names=("exgrpo", *SHAPINGS),
                                metrics=(IN, "loss/entropy", "replay/gradient_share"))},
        ("exgrpo", *SHAPINGS)),
    "bfloat16": Study(
        "Computing and generating in bfloat16 (master weights in float32), as on a GPU",
        (Claim("it costs less than 2 points: 2 points plus the difference to float32, in distribution", "trains in bfloat16",
               partial(_unharmed, metric=IN)),
         Claim("and out of distribution", "trains in bfloat16", partial(_unharmed, metric=OOD))),
        {"bfloat16.png": partial(pictures.curves, names=("exgrpo", "bfloat16"), metrics=(IN, OOD, "loss/entropy"))},
        ("exgrpo", "bfloat16")),
}
ALIASES = {"fig1c": "fig1b", "fig6": "fig5", "fig7": "table6", "fig8": "table6"}  # drawn beside the study named
