#!/usr/bin/env python3
"""Makes the GGUF fixtures of tests/actors/model with the `gguf` package as oracle.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install gguf
    /tmp/venv/bin/python tests/actors/model/make_gguf_fixtures.py

fixtures/dequantize.json: for each number format random blocks (and, for those with scales, blocks
whose scales are zero, negative and subnormal) and the values that gguf's numpy code gives for them,
both as little-endian hexadecimal.

fixtures/tiny_llama.gguf and fixtures/tiny_qwen3.gguf: two tiny models as llama.cpp writes them, with
rows of q and k of the first interleaved; fixtures/tiny_*.json hold the weights under their
Hugging Face names as they were before that, after rounding to each tensor's format.

tests/fuzz/corpus/gguf: smaller ones still, as seeds of the fuzzer. Random seeds are fixed.
"""
import json
import pathlib

import gguf
import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type

TYPES = [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.Q2_K,
         Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]
# Where the half-precision scales and offsets of a block are, in bytes.
HALVES = {Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
          Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}
SCALES = [0.037, -1.9, 0.0, 6e-8]


def random_blocks(rng, kind):
    """Random codes under finite scales."""
    elements, size = GGML_QUANT_SIZES[kind]
    if elements == 1:
        values = np.concatenate([rng.normal(size=60), [0.0, -0.0, 1e-7, 65504.0]]).astype(np.float32)
        if kind == Type.BF16:
            return quants.quantize(values, kind).reshape(-1)
        return values.astype(np.float16 if kind == Type.F16 else np.float32).view(np.uint8)
    blocks = rng.integers(0, 256, size=(len(SCALES), size), dtype=np.uint8)
    for row, scale in enumerate(SCALES):
        for at in HALVES[kind]:
            blocks[row, at:at + 2] = np.array([scale], np.float16).view(np.uint8)
            scale = -0.4 * scale + 0.011 * row
    return blocks.reshape(-1)


def dequantize_cases():
    rng = np.random.default_rng(20261202)
    cases = []
    for kind in TYPES:
        blocks = random_blocks(rng, kind)
        values = quants.dequantize(blocks, kind).astype("<f4")
        cases.append({"type": kind.name, "number": int(kind), "blocks": blocks.tobytes().hex(),
                      "values": values.tobytes().hex()})
    return cases


def byte_alphabet():
    """GPT-2's printable stand-in for each byte, in the order of the bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 0
    for byte in range(256):
        if byte in plain:
            table[byte] = chr(byte)
        else:
            table[byte], extra = chr(256 + extra), extra + 1
    return [table[byte] for byte in range(256)]


MERGES = ["Ġ t", "h e", "Ġt he", "i n", "Ġ a", "n d", "Ġa nd", "1 2"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def add_vocabulary(writer, pre, specials_first, alphabet=256):
    merges = MERGES if alphabet == 256 else []
    words = byte_alphabet()[:alphabet] + [merge.replace(" ", "") for merge in merges]
    tokens = SPECIALS + words if specials_first else words + SPECIALS + ["<think>"]
    kinds = [3 if token in SPECIALS else 4 if token == "<think>" else 1 for token in tokens]
    while len(tokens) % 32:
        tokens.append(f"[PAD{len(tokens)}]")
        kinds.append(5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT)
    return len(tokens)


def interleave(weight, heads):
    """What llama.cpp's conversion does to rows of q and k: pairs (i, i + D/2) come to lie together."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


class TinyModel:
    """One layer of width 32; every tensor in the format named for it."""

    def __init__(self, path, architecture, seed):
        self.rng = np.random.default_rng(seed)
        self.writer = gguf.GGUFWriter(path, architecture)
        self.weights = {}

    def add(self, name, their_name, shape, kind, heads=0):
        values = self.rng.normal(size=shape).astype(np.float32)
        stored = interleave(values, heads) if heads else values
        packed = quants.quantize(stored, kind)
        rounded = quants.dequantize(packed, kind).astype("<f4").reshape(shape)
        if heads:  # rows are rounded one by one, so the inverse may come after
            rounded = rounded.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])
            rounded = np.ascontiguousarray(rounded.swapaxes(1, 2)).reshape(shape)
        self.writer.add_tensor(their_name, packed, raw_dtype=kind)
        self.weights[name] = {"shape": list(shape), "values": rounded.tobytes().hex()}

    def add_layer(self, query, key, interleaved, qk_norm):
        layer, block = "model.layers.0.", "blk.0."
        heads = (query // 8, key // 8) if interleaved else (0, 0)
        self.add(layer + "input_layernorm.weight", block + "attn_norm.weight", (32,), Type.F32)
        self.add(layer + "self_attn.q_proj.weight", block + "attn_q.weight", (query, 32), Type.Q4_1, heads[0])
        self.add(layer + "self_attn.k_proj.weight", block + "attn_k.weight", (key, 32), Type.Q5_0, heads[1])
        self.add(layer + "self_attn.v_proj.weight", block + "attn_v.weight", (key, 32), Type.Q8_0)
        self.add(layer + "self_attn.o_proj.weight", block + "attn_output.weight", (32, query), Type.F16)
        if qk_norm:
            for letter in "qk":
                self.add(f"{layer}self_attn.{letter}_norm.weight", f"{block}attn_{letter}_norm.weight", (8,), Type.F32)
        self.add(layer + "post_attention_layernorm.weight", block + "ffn_norm.weight", (32,), Type.F32)
        self.add(layer + "mlp.gate_proj.weight", block + "ffn_gate.weight", (32, 32), Type.Q4_0)
        self.add(layer + "mlp.up_proj.weight", block + "ffn_up.weight", (32, 32), Type.Q5_1)
        self.add(layer + "mlp.down_proj.weight", block + "ffn_down.weight", (32, 32), Type.BF16)

    def finish(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        return self.weights


def add_shape(writer, heads, kv_heads):
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)


def tiny_llama(path, alphabet=256):
    model = TinyModel(path, "llama", 1)
    add_shape(model.writer, 4, 2)
    model.writer.add_rope_freq_base(100000.0)
    model.writer.add_rope_dimension_count(8)
    vocabulary = add_vocabulary(model.writer, "smollm", specials_first=True, alphabet=alphabet)
    model.writer.add_vocab_size(vocabulary)
    model.add("model.embed_tokens.weight", "token_embd.weight", (vocabulary, 32), Type.Q8_0)
    model.add_layer(32, 16, interleaved=True, qk_norm=False)
    model.add("model.norm.weight", "output_norm.weight", (32,), Type.F32)
    return model.finish()


def tiny_qwen3(path, alphabet=256):
    model = TinyModel(path, "qwen3", 2)
    add_shape(model.writer, 8, 4)  # 8 heads of 8 in a width of 32
    model.writer.add_rope_freq_base(1e6)
    model.writer.add_key_length(8)
    model.writer.add_value_length(8)
    vocabulary = add_vocabulary(model.writer, "qwen2", specials_first=False, alphabet=alphabet)
    model.add("lm_head.weight", "output.weight", (vocabulary, 32), Type.Q4_0)
    model.add("model.embed_tokens.weight", "token_embd.weight", (vocabulary, 32), Type.Q4_0)
    model.add_layer(64, 32, interleaved=False, qk_norm=True)
    model.add("model.norm.weight", "output_norm.weight", (32,), Type.F32)
    return model.finish()


def main():
    fixtures = pathlib.Path(__file__).resolve().parent / "fixtures"
    lines = ",\n".join(json.dumps(case) for case in dequantize_cases())
    (fixtures / "dequantize.json").write_text("[\n" + lines + "\n]\n")
    corpus = fixtures.parents[2] / "fuzz/corpus/gguf"
    corpus.mkdir(parents=True, exist_ok=True)
    for name, make in {"tiny_llama": tiny_llama, "tiny_qwen3": tiny_qwen3}.items():
        weights = make(fixtures / f"{name}.gguf")
        # Not lm_head and embedding in full: their first rows tell as much.
        for tensor in weights.values():
            tensor["values"] = tensor["values"][:2 * 4 * 32 * 64]
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(tensor)}" for name, tensor in weights.items())
        (fixtures / f"{name}.json").write_text("{\n" + lines + "\n}\n")
        make(corpus / name, alphabet=29)


if __name__ == "__main__":
    main()
