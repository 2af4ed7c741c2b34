"""The last study, as data: 1,920 questions, each asked twice at most."""

from studies.arms import GRID, Row

FILE = "records-plenty.jsonl"
COMMIT = "8c1272371200"  # whose train.py made all runs
CHOOSING = range(30, 34)  # the seeds that chose the rates
DECIDING = range(40, 52)  # the seeds that decided
RATED = {"R0": GRID, "P": GRID, "PC": GRID, "HC": (1.4e-4, *GRID)}  # arm -> its rates
RATES = {"R0": 4.5e-4, "P": 4.5e-4, "HC": 3e-4}  # arm -> the one that it got
OWN = {arm: ("default", arm, lr) for arm, lr in RATES.items()}
AT_P = {arm: ("default", arm, RATES["P"]) for arm in ("P", "PC", "HC", "PN")}  # and R0's
ROWS = [
    Row("does ExGRPO pay?", OWN["P"], OWN["R0"], decided=True),
    Row("rarely solved questions", OWN["HC"], OWN["R0"], decided=True),
    Row("which questions come back", AT_P["HC"], AT_P["PC"], decided=True),
    Row("what old answers add", AT_P["P"], AT_P["PN"], decided=True),
    Row("CLIP kept", AT_P["PC"], AT_P["P"]),
    Row("new answers alone", AT_P["PN"], OWN["R0"]),
    Row("rarely solved, at one rate", AT_P["HC"], OWN["R0"]),
]


def blocks_of(records: dict) -> dict[str, tuple]:
    """{block: its groups, and the seeds of each}."""
    rated = [("default", arm, lr) for arm, grid in RATED.items() for lr in grid]
    main = dict.fromkeys(group for row in ROWS for group in (row.one, row.other))
    return {"rates": (rated, CHOOSING), "main": ([*main], DECIDING)}


def rows_of(records: dict) -> dict[str, list[Row]]:
    """The comparisons."""
    return {"main": ROWS}
