#!/usr/bin/env python3
"""Makes tests/actors/model/fixtures with transformers as oracle.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers
    /tmp/venv/bin/python tests/actors/model/make_fixtures.py [--shared ../shared]

Tiny random models of each family, saved by transformers itself, with their logits in double
precision; and the log-probabilities of a greedy text of stories260K. Seeds are fixed.
"""
import argparse
import json
import pathlib
import shutil

import torch
from transformers import (AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

COMMON = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
              bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
MODELS = {
    "llama_biases": (LlamaForCausalLM, LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True,
                                                   tie_word_embeddings=False), None),
    "llama3_scaling": (LlamaForCausalLM, LlamaConfig(**COMMON, head_dim=8, rope_parameters=LLAMA3_ROPE,
                                                     tie_word_embeddings=True), None),
    "llama_linear": (LlamaForCausalLM, LlamaConfig(
        **COMMON, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
        tie_word_embeddings=False), None),
    "qwen2_sharded": (Qwen2ForCausalLM, Qwen2Config(**COMMON, tie_word_embeddings=True,
                                                    rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
                      "4KB"),
    "qwen3_bf16": (Qwen3ForCausalLM, Qwen3Config(**COMMON, head_dim=12, tie_word_embeddings=False), None),
    "qwen3_biases": (Qwen3ForCausalLM, Qwen3Config(**COMMON, head_dim=4, attention_bias=True,
                                                   tie_word_embeddings=True), None),
}


def main():
    parser = argparse.ArgumentParser()
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--shared", type=pathlib.Path, default=here.parents[3] / "shared")
    parser.add_argument("--out", type=pathlib.Path, default=here / "fixtures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, (kind, config, shard) in MODELS.items():
        torch.manual_seed(sum(name.encode()))
        model = kind(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
        if name.endswith("bf16"):
            model = model.to(torch.bfloat16)
        folder = arguments.out / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
        for file in folder.iterdir():
            file.chmod(0o644)
        ids = torch.randint(0, config.vocab_size, (1, 48))
        # Loaded again, so that nothing but the stored weights was ever narrow (rotary buffers).
        model = kind.from_pretrained(folder, dtype=torch.float64).eval()
        with torch.no_grad():
            logits = model(ids).logits[0]
        rows = [0, 1, 7, 30, 47]
        golden = {"ids": ids[0].tolist(), "rows": rows,
                  "logits": [[round(x, 7) for x in logits[row].tolist()] for row in rows],
                  "parameters": sum(p.numel() for p in model.parameters())}
        (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")

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
