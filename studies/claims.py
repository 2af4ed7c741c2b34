"""The studies: which claims of the paper are put to the test, on which runs, and by which numbers.

Everything here was fixed before the runs, but for what studies/README.md names as changed since. A claim's
number is made per seed and is positive where the claim holds; the rule that decides it is in measures.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from studies import measures, pictures, responses
from studies.measures import IN, OOD, Data, Numbers, equal, gained, of_samples, pairs, training

Draw = Callable[[Data, tuple[str, ...]], object]  # data and names of runs -> figure


@dataclass(frozen=True)
class Claim:
    """One statement, what the paper reports for it, and its numbers, positive where the statement holds."""

    text: str
    paper: str
    numbers: Numbers


@dataclass(frozen=True)
class Study:
    """A figure or table of the paper."""

    title: str
    claims: tuple[Claim, ...]
    pictures: dict[str, Draw]  # by file name; drawn of `runs`
    runs: tuple[str, ...] = ()
    samplings: tuple[str, ...] = ()


def beats(a: str, b: str, text: str, paper: str, metric: str = IN, at_end: bool = False) -> Claim:
    """The claim that run `a` has a higher curve than run `b` (or a higher end)."""
    def numbers(data: Data) -> list[float]:
        of = data.ends if at_end else data.heights
        return pairs(of(a, metric), of(b, metric))

    return Claim(text, paper, numbers)


def curves(*metrics: str, runs: tuple[str, ...] = ()) -> Draw:
    """A picture with a panel per metric: of all runs of the study, unless some are named."""
    return lambda data, names: pictures.curves(data, runs or names, metrics)


# ---------------------------------------------------------------- the studies

ABLATIONS = {  # run -> (its name in Table 6, the paper's in-distribution average)
    "no_question_selection": ("no question selection", 46.7),
    "no_trajectory_selection": ("no trajectory selection", 46.3),
    "no_selection": ("neither selection", 46.1),
    "highest_entropy": ("highest entropy", 46.0),
    "no_shaping": ("no shaping", 41.2),
    "no_importance_correction": ("no importance correction", 47.1),
    "rho_25": ("ρ = 0.25", 46.4),
    "rho_75": ("ρ = 0.75", 44.8),
    "on_policy": ("on-policy", 45.3),
}
SAMPLERS = {"sigma_05": ("σ = 0.5", "48.3 > 46.2"), "sigma_15": ("σ = 1.5", "48.3 > 46.2"),
            "mu_25": ("μ = 0.25", "48.3 > 46.3"), "accuracy_scale": ("accuracy scale", "not compared")}
SHAPINGS = {"beta_003": ("β = 0.03", "not reported"), "beta_03": ("β = 0.3", "not reported"),
            "beta_1": ("β = 1", "not reported"), "no_shaping": ("no shaping", "48.3 > 41.2")}
GAPS = (("base", "base model"), ("base", "base model, shortcuts left out"),
        ("early", "a third into on-policy training"),
        ("early", "a third into on-policy training, shortcuts left out"))
WHERE = ((IN, "in distribution"), (OOD, "out of distribution"))

STUDIES = {
    "fig1a": Study(
        "Which questions are worth training on (Masked GRPO, Eq. 14)",
        (beats("medium", "easy", "Medium only beats Easy only", "42.3 > 41.1"),
         beats("medium", "hard", "Medium only beats Hard only", "42.3 > 41.6"),
         beats("on_policy", "medium", "the full set beats Medium only", "45.3 > 42.3")),
        {"fig1a.png": pictures.heights},
        ("easy", "medium", "hard", "on_policy")),
    "fig1b": Study(
        "Entropy of right responses: valid against flawed chains, by difficulty (with fig1c)",
        (*(Claim(f"valid chains have lower entropy in every bucket ({where}): "
                 "the smallest of the three gaps, in nats", "0.04, 0.05, 0.06",
                 of_samples(name, responses.smallest_gap, shortcuts=", shortcuts left out" not in where))
           for name, where in GAPS),
         Claim("entropy tells flawed from valid chains better than perplexity (difference of AUC)",
               "better, App. F.3",
               of_samples("early", responses.auc_gain, over="nll")),
         Claim("and better than length alone (control, difference of AUC)", "–",
               of_samples("early", responses.auc_gain, over="length")),
         *(Claim("right responses to Medium questions have lower entropy than to "
                 f"{other} ones (medians, nats)",
                 "Medium lowest, Fig. 1c", of_samples("early", responses.median_gap, other=other))
           for other in ("Easy", "Hard"))),
        {"fig1b.png": pictures.entropy_bars, "fig1c.png": pictures.entropy_densities},
        samplings=("base", "early")),
    "table12": Study(
        "Shortcuts and the snowball effect (App. F.4); a shortcut here is an answer without a step, "
        "so never a valid chain",
        (Claim("right shortcut responses have higher entropy "
               "(Medium, base model, nats; nearly by construction)",
               "0.14 > 0.07", of_samples("base", responses.shortcut_gap, column="entropy")),
         Claim("and fewer valid chains (Medium, base model; by construction)", "-8.7 to -11.5 points",
               measures.negative(of_samples("base", responses.shortcut_gap, column="valid"))),
         beats("highest_entropy", "exgrpo", "replaying the highest entropy raises the share of shortcuts",
               "raises it", "val/shortcut/arithmetic"),
         beats("exgrpo", "highest_entropy", "and lowers the share of valid chains", "lowers it",
               "val/valid/arithmetic")),
        {"table12.png": curves("val/shortcut/arithmetic", "val/valid/arithmetic")},
        ("exgrpo", "highest_entropy", "on_policy"), ("base",)),
    "table1": Study(
        "ExGRPO against on-policy Dr. GRPO",
        (beats("exgrpo", "on_policy", "equal steps, in distribution", "48.3 > 45.3"),
         beats("exgrpo", "on_policy", "equal steps, out of distribution", "58.3 > 56.4", OOD),
         beats("exgrpo", "on_policy", "at the end, in distribution", "48.3 > 45.3", at_end=True),
         beats("exgrpo", "on_policy", "at the end, out of distribution", "58.3 > 56.4", OOD, at_end=True),
         *(Claim(f"equal generated tokens, {where}", "not reported", equal("tokens", metric))
           for metric, where in WHERE),
         *(Claim(f"equal wall time, {where}", "not reported", equal("seconds", metric))
           for metric, where in WHERE)),
        {"table1.png": curves(IN, OOD)},
        ("exgrpo", "on_policy")),
    "fig4": Study(
        "A base model too weak for on-policy training; replay from the start",
        (Claim("on-policy stalls: 5 points minus its gain", "collapses, 1.2 to 3.4",
               measures.negative(gained("on_policy_weak"))),
         Claim("replay from the start does not: its gain minus 5 points", "rescues it",
               gained("exgrpo_weak")),
         beats("exgrpo_weak", "on_policy_weak", "replay scores above on-policy, in distribution",
               "6.1 > 3.4"),
         beats("exgrpo_weak", "on_policy_weak", "replay scores above on-policy, out of distribution",
               "30.8 > 1.2", OOD)),
        {"fig4.png": curves(IN, "reward/pass_at_1_fresh", "rollout/length", "loss/entropy")},
        ("exgrpo_weak", "on_policy_weak")),
    "fig5": Study(
        "Buffer and retired set during training (with fig6: by ρ, and without question selection)",
        (Claim("at the end about half the questions are buffered or retired: "
               "distance of that share inside [1/3, 2/3]",
               "about half", measures.seen),
         Claim("more replay retires fewer questions: ρ = 0.25 minus ρ = 0.75, over the run",
               "our reading of Fig. 6",
               training("buckets/retired", "rho_25", "rho_75")),
         Claim("question selection retires more than uniform replay, over the run", "our reading of Fig. 6",
               training("buckets/retired", "exgrpo", "no_question_selection"))),
        {"fig5.png": curves("buckets/questions", "buckets/retired", runs=("exgrpo",)),
         "fig6.png": curves("buckets/questions", "buckets/retired")},
        ("exgrpo", "rho_25", "rho_75", "no_question_selection")),
    "table6": Study(
        "Ablations (with fig7: validation curves, fig8: entropy)",
        (*(beats("exgrpo", run, f"ExGRPO beats {label}", f"48.3 > {paper}")
           for run, (label, paper) in ABLATIONS.items()),
         Claim("without shaping the entropy is below on-policy's early (first quarter, nats)",
               "drops early, Fig. 8",
               training("loss/entropy", "on_policy", "no_shaping", 0.0, 0.25)),
         Claim("and above it at the end (last quarter, nats)", "ends above, Fig. 8",
               training("loss/entropy", "no_shaping", "on_policy", 0.75, 1.0)),
         Claim("control: early it is also below ExGRPO's, which replays as much, with shaping", "–",
               training("loss/entropy", "exgrpo", "no_shaping", 0.0, 0.25)),
         Claim("control: and above ExGRPO's at the end", "–",
               training("loss/entropy", "no_shaping", "exgrpo", 0.75, 1.0))),
        {"table6.png": pictures.heights, "fig7.png": curves(IN, OOD),
         "fig8.png": curves("loss/entropy", runs=("exgrpo", "no_shaping", "on_policy"))},
        ("exgrpo", *ABLATIONS)),
    "table3": Study(
        "The sampler: σ, μ and its scale",
        (*(beats("exgrpo", run, f"σ = 1, μ = 0.5 on counts beats {label}", paper)
           for run, (label, paper) in SAMPLERS.items()),
         beats("mu_25", "on_policy", "found by looking: μ = 0.25 beats on-policy, in distribution",
               "not compared"),
         beats("mu_25", "on_policy", "found by looking: μ = 0.25 beats on-policy, out of distribution",
               "not compared", OOD)),
        {"table3.png": pictures.heights},
        ("exgrpo", *SAMPLERS, "on_policy")),
    "table7": Study(
        "Putting retired questions back",
        (beats("exgrpo", "reinstate", "putting 10% of the retired questions back every 25 steps hurts",
               "48.3 > 45.3"),),
        {"table7.png": curves(IN, "buckets/retired")},
        ("exgrpo", "reinstate")),
    "table2": Study(
        "Continuous rewards (Sec. 5.3): the share of valid steps, buckets by reward spread",
        (beats("exgrpo_graded", "on_policy_graded", "ExGRPO beats GRPO, mean reward in distribution",
               "21.7 > 20.0"),
         beats("exgrpo_graded", "on_policy_graded", "and out of distribution", "–", OOD)),
        {"table2.png": curves(IN, OOD)},
        ("exgrpo_graded", "on_policy_graded")),
    "official": Study(
        "The official code's selection rule, in effect the lowest sum of entropies",
        (Claim("the official rule chooses what the paper's rule chooses more often than chance "
               "(share of choices)",
               "not reported", of_samples("early", responses.agreement)),
         Claim("the official rule chooses one of the shortest responses more often than chance "
               "(share of choices)",
               "not reported", of_samples("early", responses.shortness)),
         Claim("the paper's rule chooses valid chains more often than the official one", "not reported",
               of_samples("early", responses.validity, against="official")),
         Claim("the paper's rule chooses valid chains more often than random choice", "follows from Fig. 1b",
               of_samples("early", responses.validity, against="random")),
         beats("exgrpo", "official", "training with the paper's rule beats the official one", "not reported"),
         beats("official", "no_trajectory_selection", "the official rule beats random choice",
               "not reported")),
        {"official.png": curves(IN, OOD)},
        ("exgrpo", "official", "no_trajectory_selection"), ("early",)),
    "shaping": Study(
        "The shaping's β: the gradient balance of a mixed group, entropy and learning",
        (*(beats("exgrpo", run, f"β = 0.1 beats {label}", paper) for run, (label, paper) in SHAPINGS.items()),
         Claim("shaping takes from the replayed responses' share of the policy term "
               "(no shaping minus β = 0.1)",
               "by construction", training("replay/gradient_share", "no_shaping", "exgrpo")),
         Claim("shaping keeps entropy up: β = 0.1 minus no shaping, over the run (nats)", "Sec. 4.2",
               training("loss/entropy", "exgrpo", "no_shaping"))),
        {"shaping.png": curves(IN, "loss/entropy", "replay/gradient_share")},
        ("exgrpo", *SHAPINGS)),
    "bfloat16": Study(
        "Computing and generating in bfloat16 (master weights in float32), as on a GPU",
        (Claim("it costs less than 2 points: 2 points plus the difference to float32, in distribution",
               "trains in bfloat16", measures.unharmed(IN)),
         Claim("and out of distribution", "trains in bfloat16", measures.unharmed(OOD))),
        {"bfloat16.png": curves(IN, OOD, "loss/entropy")},
        ("exgrpo", "bfloat16")),
}
# drawn beside the study named
ALIASES = {"fig1c": "fig1b", "fig6": "fig5", "fig7": "table6", "fig8": "table6"}
