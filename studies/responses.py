"""What sampled responses say (sampling.py): entropy by difficulty and validity, shortcuts, choices of o*.

`samples` are the columns of one sampling pass: NumPy arrays with a value per response.
"""

import numpy as np

BUCKETS = ("Easy", "Medium", "Hard")  # k/K in [75%, 100%), (25%, 75%), (0, 25%], as in Sec. 3.2


def columns(result: dict) -> dict[str, np.ndarray]:
    """The sampled responses, a value each, with the bucket of their question ("" for k = 0 and k = K)."""
    samples = {name: np.array(values) for name, values in result["columns"].items()}
    rate = samples["k"] / result["num_rollouts"]
    bucket = np.full(len(rate), "", dtype=object)
    bucket[(rate >= 0.75) & (rate < 1)] = "Easy"
    bucket[(rate > 0.25) & (rate < 0.75)] = "Medium"
    bucket[(rate > 0) & (rate <= 0.25)] = "Hard"
    judged = {name: samples[name].astype(bool) for name in ("valid", "shortcut")}
    return {**samples, **judged, "bucket": bucket, "right": samples["reward"] > 0.5}


def auc(low: np.ndarray, high: np.ndarray) -> float:
    """The chance that a value of `high` exceeds one of `low`, ties counting half; nan where one is empty."""
    if not len(low) or not len(high):
        return float("nan")
    ordered = np.sort(low)
    below = np.searchsorted(ordered, high, "left") + np.searchsorted(ordered, high, "right")
    return float(below.mean() / (2 * len(low)))


def smallest_gap(samples: dict, shortcuts: bool = True) -> float:
    """The smallest of the three buckets' gaps between flawed and valid chains; nan where one has none."""
    return float(np.min([bucket_gap(samples, bucket, shortcuts) for bucket in BUCKETS]))


def bucket_gap(samples: dict, name: str, shortcuts: bool = True) -> float:
    """Mean entropy of flawed minus valid chains among a bucket's right answers, with or without shortcuts."""
    chosen = samples["right"] & (samples["bucket"] == name) & (shortcuts | ~samples["shortcut"])
    entropy, valid = samples["entropy"][chosen], samples["valid"][chosen]
    if not valid.any() or valid.all():
        return float("nan")
    return float(entropy[~valid].mean() - entropy[valid].mean())


def bucket_auc(samples: dict, column: str) -> float:
    """AUC of a column for telling flawed (higher) from valid chains, the mean over the buckets.

    Length is a control and may point either way: its better direction counts.
    """
    values = []
    for name in BUCKETS:
        chosen = samples["right"] & (samples["bucket"] == name)
        value, valid = samples[column][chosen], samples["valid"][chosen]
        values.append(auc(value[valid], value[~valid]))
    mean = float(np.nanmean(values))
    return max(mean, 1 - mean) if column == "length" else mean


def auc_gain(samples: dict, over: str) -> float:
    """What entropy is better than another column."""
    return bucket_auc(samples, "entropy") - bucket_auc(samples, over)


def median_gap(samples: dict, other: str) -> float:
    """Median entropy of right responses to the questions of another bucket, minus that of Medium."""
    right, bucket, entropy = samples["right"], samples["bucket"], samples["entropy"]
    medians = [np.median(entropy[right & (bucket == name)]) for name in (other, "Medium")]
    return float(medians[0] - medians[1])


def shortcut_gap(samples: dict, column: str) -> float:
    """Mean of a column over the right shortcuts to Medium questions minus over the other right responses."""
    right, shortcut = samples["right"] & (samples["bucket"] == "Medium"), samples["shortcut"]
    values = samples[column].astype(float)
    return float(values[right & shortcut].mean() - values[right & ~shortcut].mean())


# ---------------------------------------------------------------- choices of o*


def stored(samples: dict) -> list[np.ndarray]:
    """What a buffer would hold after a visit of every question, where there is a choice: arrays of rows.

    A question's distinct right responses, 2 or more, of questions that were not always right. A question has
    one valid chain, so most right responses are copies, which have the same length, entropy and NLL.
    """
    same = np.stack([samples[name] for name in ("length", "entropy", "nll")], 1)
    kept = []
    for question in np.unique(samples["question"]):
        rows = np.flatnonzero(samples["right"] & (samples["question"] == question))
        rows = rows[np.unique(same[rows], axis=0, return_index=True)[1]]
        if len(rows) > 1 and samples["bucket"][rows[0]]:
            kept.append(rows)
    return kept


def choice(samples: dict, rule: str, rows: np.ndarray) -> int:
    """The row that a rule takes as o*: "paper", the lowest mean entropy, or "official", the lowest sum."""
    values = samples["entropy"] * (samples["length"] if rule == "official" else 1)
    return rows[np.argmin(values[rows])]


def agreement(samples: dict) -> float:
    """How much more often the official rule chooses the paper's o* than chance would."""
    kept = stored(samples)
    agreed = [choice(samples, "official", rows) == choice(samples, "paper", rows) for rows in kept]
    return float(np.mean([same - 1 / len(rows) for same, rows in zip(agreed, kept)]))


def shortness(samples: dict) -> float:
    """How much more often than chance the official rule's choice is one of the shortest responses."""
    shares = []
    for rows in stored(samples):
        shortest = samples["length"] == samples["length"][rows].min()
        shares.append(float(shortest[choice(samples, "official", rows)]) - shortest[rows].mean())
    return float(np.mean(shares))


def validity(samples: dict, against: str) -> float:
    """Share of valid chains among the paper's choices, less that among "official" or "random" ones."""
    valid, shares = samples["valid"].astype(float), []
    for rows in stored(samples):
        other = valid[rows].mean() if against == "random" else valid[choice(samples, against, rows)]
        shares.append(valid[choice(samples, "paper", rows)] - other)
    return float(np.mean(shares))
