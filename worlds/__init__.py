"""Tasks: the built-in world, real ones with a small real model, and the paper's benchmarks."""

# A question of the built-in world: its answer, and what a reward function is given of its row.
FIRST_CASE = (
    "764",
    {
        "data_source": "arithmetic",
        "extra_info": {"index": 0},
        "prompt": [{"role": "user", "content": "3a+4b*3c-5d+9e-1"}],
        "response_prefix": "",
    },
)
