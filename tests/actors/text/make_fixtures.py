#!/usr/bin/env python3
"""Makes tests/actors/text/fixtures with the Hugging Face tokenizers library as oracle.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tokenizers transformers jinja2
    /tmp/venv/bin/python tests/actors/text/make_fixtures.py [--shared ../shared]

For each family a small tokenizer is trained on GSM8K with that family's normalizer, split pattern
and post-processor; its file and the ids of many strings under it are stored. The strings come
from a fixed seed, so a second run writes the same bytes.
"""
import argparse
import json
import pathlib
import random

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def train(texts, specials, pre_tokenizer, normalizer=None, size=1500, plain_added=(), ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    tokenizer.add_tokens(list(plain_added))
    return tokenizer


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])


def make_tokenizers(texts, stories_folder):
    chat = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    qwen = train(texts, chat, split_then_bytes(QWEN), normalizers.NFC(),
                 plain_added=[AddedToken("<think>", normalized=False, special=False),
                              AddedToken("</think>", normalized=False, special=False)])
    llama_specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                      "<|end_header_id|>", "<|eot_id|>"]
    llama3 = train(texts, llama_specials, split_then_bytes(LLAMA3), ignore_merges=True)
    begin = llama3.token_to_id("<|begin_of_text|>")
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B",
                                      special_tokens=[("<|begin_of_text|>", begin)])])
    gpt2 = train(texts, ["<|endoftext|>"], pre_tokenizers.ByteLevel(add_prefix_space=False),
                 plain_added=[AddedToken("grüße", single_word=True),
                              AddedToken("[gap]", lstrip=True, rstrip=True, normalized=False)])
    gpt2.post_processor = processors.ByteLevel(trim_offsets=True)
    smollm = train(texts, chat, pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)]))
    made = {"qwen": qwen, "llama3": llama3, "gpt2": gpt2, "smollm": smollm}

    # A Llama 2 file in its newer form: Metaspace instead of a normalizer.
    if stories_folder.exists():
        document = json.loads((stories_folder / "tokenizer.json").read_text())
        document["normalizer"] = None
        document["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁",
                                     "prepend_scheme": "first", "split": False}
        document["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
        made["metaspace"] = Tokenizer.from_str(json.dumps(document))
    return made


POOL = ("abcdefghij ABC  \t\n\r\n 0123456789 .,;:!?'\"()[]{}<>|/\\-_=+*&^%$#@~` 's 're 'LL ſ K é e\u0301 "
        "ü ß Å å Å 你好世界 日本語 カタカナ 한국어 \u1112\u1161\u11ab العربية עברית हिन्दी Ελληνικά русский "
        "😀 👩‍👩‍👧 🇩🇪 \u200b\u200d\u00a0\u2003\u3000\u2028 ½ Ⅷ ٣ ² ﬁ ▁ Ġ \u0000 \u0001 \u007f \ufffd \U0010ffff \u0378")


def random_string(rng, texts, markers):
    kind = rng.randrange(5)
    if kind == 0:
        text = rng.choice(texts)
        begin = rng.randrange(len(text))
        return text[begin:begin + rng.randrange(1, 80)]
    if kind == 1:
        return "".join(rng.choice(POOL) for _ in range(rng.randrange(1, 30)))
    if kind == 2:
        points = [rng.randrange(0x20, 0x3000) if rng.random() < .7 else rng.randrange(0x10000, 0x1F700)
                  for _ in range(rng.randrange(1, 12))]
        # U+180E is white space to PCRE2 only: a known difference.
        return "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000 and p != 0x180E)
    if kind == 3:
        parts = [rng.choice(markers) if rng.random() < .4 else
                 "".join(rng.choice(POOL) for _ in range(rng.randrange(0, 5))) for _ in range(6)]
        return "".join(parts)
    return rng.choice([" ", "\n", "\t", "a", "1", "'", "é", "😀", "\r\n"]) * rng.randrange(1, 40)


def encode_cases(tokenizer, strings):
    cases = []
    for text in strings:
        tokenizer.encode_special_tokens = False
        trusted = tokenizer.encode(text, add_special_tokens=False).ids
        with_special = tokenizer.encode(text, add_special_tokens=True).ids
        cases.append({"text": text, "trusted": trusted, "with_special": with_special,
                      "decoded": tokenizer.decode(trusted, skip_special_tokens=False),
                      "decoded_skip": tokenizer.decode(trusted, skip_special_tokens=True)})
    return cases


def without_added(tokenizer):
    """What untrusted text goes through: the same file, but no added token is known."""
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = []
    document["post_processor"] = None
    return Tokenizer.from_str(json.dumps(document))


CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
CHATML_DEFAULT = ("{% if not messages or messages[0].role != 'system' %}<|im_start|>system\n"
                  "You are a careful helper.<|im_end|>\n{% endif %}" + CHATML)
CHATML_NO_THINK = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n\n</think>\n\n{% endif")
LLAMA3_CHAT = ("{% for m in messages %}{% if loop.first %}<|begin_of_text|>{% endif %}<|start_header_id|>{{ m.role }}"
               "<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
               "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}")
CHATS = [("qwen", "chatml", CHATML, {}), ("smollm", "chatml", CHATML, {}),
         ("qwen", "chatml", CHATML_DEFAULT, {"default_system": "You are a careful helper."}),
         ("qwen", "chatml", CHATML_NO_THINK, {"empty_think_block": True}),
         ("llama3", "llama3", LLAMA3_CHAT, {})]


def chat_cases(made):
    """Conversations of 0 to 3 turns; contents are harmless, as the library parses special tokens in them."""
    from transformers import PreTrainedTokenizerFast
    user = ["What is 12 + 30?", "\n\n  line breaks first", "日本語 é 😀\n", "", " spaces  "]
    answer = ["It is 42.", "#### 42\n", "  two\n\nparagraphs", "né 1,234.50"]
    conversations = []
    for system in ([], [{"role": "system", "content": "Be brief.\n"}]):
        for turns in range(1, 4):
            messages = list(system)
            for turn in range(turns):
                messages.append({"role": "user", "content": user[(turn + turns) % len(user)]})
                conversations.append((list(messages), True))
                messages.append({"role": "assistant", "content": answer[(turn + 2 * turns) % len(answer)]})
            conversations.append((messages, False))
    cases = []
    for name, style, template, options in CHATS:
        fast = PreTrainedTokenizerFast(tokenizer_object=made[name], chat_template=template)
        for messages, generate in conversations:
            if not generate and options.get("empty_think_block"):
                continue
            text = fast.apply_chat_template(messages, add_generation_prompt=generate, tokenize=False)
            ids = fast(text, add_special_tokens=False)["input_ids"]
            cases.append({"tokenizer": name, "style": style, "options": options, "messages": messages,
                          "add_generation_prompt": generate, "ids": ids})
    return cases


def main():
    parser = argparse.ArgumentParser()
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--shared", type=pathlib.Path, default=here.parents[3] / "shared")
    parser.add_argument("--out", type=pathlib.Path, default=here / "fixtures")
    parser.add_argument("--cases", type=int, default=160)
    parser.add_argument("--seed", type=int, default=20240607)
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in open(arguments.shared / "data/gsm8k/train.jsonl")]
    texts = [row["question"] + "\n" + row["answer"] for row in rows]
    stories_folder = arguments.shared / "models/stories260K"

    made = make_tokenizers(texts[:2000], stories_folder)
    stories = Tokenizer.from_file(str(stories_folder / "tokenizer.json"))
    for name, tokenizer in {**made, "stories260K": stories}.items():
        rng = random.Random(f"{arguments.seed} {name}")
        added = json.loads(tokenizer.to_str())["added_tokens"]
        markers = [token["content"] for token in added]
        markers += [marker[:-1] for marker in markers] + ["<|", "|>", "<think>", "<0x0A>", "<s>"]
        strings = ["", " ", "  leading", "trailing  "]
        strings += [random_string(rng, texts, markers) for _ in range(arguments.cases)]
        cases = encode_cases(tokenizer, strings)
        plain = without_added(tokenizer)
        for case in cases:
            case["untrusted"] = plain.encode(case["text"], add_special_tokens=False).ids
        folder = arguments.out / name
        folder.mkdir(parents=True, exist_ok=True)
        if name != "stories260K":  # that one lies in shared/
            (folder / "tokenizer.json").write_text(tokenizer.to_str() + "\n")
        lines = ",\n".join(json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases)
        (folder / "cases.json").write_text("[\n" + lines + "\n]\n")
    lines = ",\n".join(json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in chat_cases(made))
    (arguments.out / "chat.json").write_text("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    main()
