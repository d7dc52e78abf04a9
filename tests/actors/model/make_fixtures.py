#!/usr/bin/env python3
"""Makes tests/actors/model/fixtures/stories260K.json with transformers as oracle.

    $(scripts/transformers_venv) tests/actors/model/make_fixtures.py [--shared ../shared]

The log-probabilities of a greedy text of stories260K, and its last logits, in double precision.
"""
import argparse
import json
import pathlib

import torch
from transformers import AutoModelForCausalLM


def main():
    parser = argparse.ArgumentParser()
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--shared", type=pathlib.Path, default=here.parents[3] / "shared")
    parser.add_argument("--out", type=pathlib.Path, default=here / "fixtures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    stories = AutoModelForCausalLM.from_pretrained(arguments.shared / "models/stories260K", dtype=torch.float64)
    stories.eval()
    ids = [1]
    with torch.no_grad():
        for _ in range(120):
            ids.append(int(stories(torch.tensor([ids])).logits[0, -1].argmax()))
        logits = stories(torch.tensor([ids])).logits[0]
    log_probs = logits.log_softmax(-1)[torch.arange(120), torch.tensor(ids[1:])]
    golden = {"ids": ids, "log_probs": [round(x, 7) for x in log_probs.tolist()],
              "last_logits": [round(x, 6) for x in logits[-1].tolist()]}
    (arguments.out / "stories260K.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
