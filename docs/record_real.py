"""Record what a run of the real model stored and says of it now, for the last cells of docs/one_step.ipynb.

    python train.py --config configs/smollm2.yaml --start_threshold -1 --steps 8 --run_dir runs/early
    python docs/record_real.py runs/early

Leaves docs/one_step/real.json: of up to 64 questions of the newest checkpoint's E the o* of now, each with
the step in which it was generated, its tokens' texts, and log π_past and log π_θ of every token.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from runtime import ranks
from tools.stored import newest_checkpoint, stored_responses


def main() -> None:
    """Score the stored responses of the run on the command line by its policy."""
    run = Path(sys.argv[1])
    checkpoint = newest_checkpoint(run)
    state = json.loads((checkpoint / "state.json").read_text())
    stored = stored_responses(run, checkpoint, state, 64, ranks.setup())
    stars = [{"question": q["text"], **{name: r[name] for name in ("step", "tokens", "past", "now")}}
             for q in stored["questions"] for r in q["responses"] if r["chosen"]]
    file = Path(__file__).parent / "one_step" / "real.json"
    file.write_text(json.dumps({"step": stored["step"], "stars": stars}) + "\n")


if __name__ == "__main__":
    main()
