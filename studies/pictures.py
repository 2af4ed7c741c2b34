"""The figures of the studies: heights of curves, curves with bands, entropy by bucket.

Means over seeds with 95 % intervals.
"""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from studies.measures import IN, OOD, Data, curve, interval  # noqa: E402
from studies.responses import BUCKETS  # noqa: E402

TITLES = {
    IN: "test Pass@1", OOD: "test Pass@1, out of distribution",
    "val/shortcut/arithmetic": "share of shortcuts", "val/valid/arithmetic": "share of valid chains",
    "reward/pass_at_1_fresh": "training reward, fresh questions", "rollout/length": "length [tokens]",
    "loss/entropy": "entropy [nats/token]",
    "buckets/questions": "questions in the buffer", "buckets/retired": "retired questions",
    "replay/gradient_share": "replayed share of the policy term",
}
COLOURS = {True: "#4477aa", False: "#ee6677"}  # valid, flawed


def heights(data: Data, names: tuple[str, ...]):
    """Height of the curve and end point of each run, in and out of distribution; dotted: the first run's."""
    size = (11, 0.3 * len(names) + 1.5)
    figure, axes = plt.subplots(1, 2, figsize=size, constrained_layout=True, sharey=True)
    for axis, metric in zip(axes, (IN, OOD)):
        for label, of in (("score (mean of the curve)", data.heights), ("at the end", data.ends)):
            means, halves = zip(*(interval(of(name, metric)) for name in names))
            axis.errorbar(means, np.arange(len(names)), xerr=halves, fmt="o", ms=4, capsize=2, label=label)
            axis.axvline(means[0], color="grey", lw=0.6, ls=":")
        labels = [name.replace("_", " ") for name in names]
        axis.set(title=TITLES[metric], yticks=range(len(names)), yticklabels=labels)
        axis.grid(axis="x", alpha=0.3)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7, loc="outside lower center", ncols=2)
    return figure


def curves(data: Data, names: tuple[str, ...], metrics: tuple[str, ...]):
    """A panel per metric, a line per run: the mean over seeds and its 95 % interval."""
    size = (4.6 * len(metrics), 3.4)
    figure, axes = plt.subplots(1, len(metrics), figsize=size, constrained_layout=True, squeeze=False)
    for axis, metric in zip(axes[0], metrics):
        for name in names:
            steps, mean, half = band([curve(rows, metric) for rows in data.rows(name)])
            line, = axis.plot(steps, mean, lw=2.2 if name == "exgrpo" else 1.2, label=name.replace("_", " "))
            axis.fill_between(steps, mean - half, mean + half, color=line.get_color(), alpha=0.15, lw=0)
        axis.set(title=TITLES[metric], xlabel="step")
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=7)
    return figure


def band(lines: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, mean and half width of curves of several seeds; one that ended early stays at its last value."""
    steps = max((x for x, _ in lines), key=len)
    values = np.array([np.interp(steps, x, y) for x, y in lines])  # (seeds, steps)
    mean, half = np.array([interval(column) for column in values.T]).T
    return steps, mean, half


def entropy_bars(data: Data, _):
    """Fig. 1b: mean entropy of right responses by bucket, valid against flawed; at first and early on."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), constrained_layout=True, sharey=True)
    for axis, (name, title) in zip(axes, (("base", "base model"), ("early", "a third into training"))):
        for offset, valid in ((-0.2, True), (0.2, False)):
            means = [[_mean(s["entropy"][_right(s, bucket) & (s["valid"] == valid)])
                      for s in data.samples(name)] for bucket in BUCKETS]
            tops, halves = zip(*map(interval, means))
            axis.bar(np.arange(len(BUCKETS)) + offset, tops, 0.38, yerr=halves, color=COLOURS[valid],
                     label="valid chain" if valid else "flawed chain", error_kw={"lw": 1})
        axis.set(title=title, xticks=range(len(BUCKETS)), xticklabels=BUCKETS)
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel("mean entropy [nats/token]")
    axes[0].legend(fontsize=7)
    return figure


def entropy_densities(data: Data, _):
    """Fig. 1c: the distribution of the entropy of right responses by bucket, all seeds together."""
    figure, axis = plt.subplots(figsize=(5, 3.2), constrained_layout=True)
    samples = data.samples("early")
    values = {b: np.concatenate([s["entropy"][_right(s, b)] for s in samples]) for b in BUCKETS}
    edges = np.linspace(0, max((v.max() for v in values.values() if len(v)), default=1.0), 41)
    for bucket, entropies in values.items():
        axis.hist(entropies, edges, density=True, histtype="step", lw=1.4, label=bucket)
    axis.set(xlabel="mean entropy [nats/token]", ylabel="density")
    axis.legend(fontsize=7)
    return figure


def _right(samples: dict, bucket: str) -> np.ndarray:
    return samples["right"] & (samples["bucket"] == bucket)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def save(figure, file) -> None:
    figure.savefig(file, dpi=90)
    plt.close(figure)
