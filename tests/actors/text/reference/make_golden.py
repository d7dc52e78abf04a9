#!/usr/bin/env python3
"""Makes chats.json and texts.json: what Jinja and the tokenizers library make of common texts.

    python=$(scripts/transformers_venv)
    $python scripts/fetch_reference_text /tmp/reference_text --smollm2 /tmp/smollm2/model
    $python tests/actors/text/reference/make_golden.py /tmp/reference_text [--shared ../shared]

chats.json: conversations as transformers' apply_chat_template writes them with the published
templates, their ids under the small tokenizers of ../fixtures, and of each template the few texts
that Troupe must find in it. texts.json: a set of texts in many scripts, and for every tokenizer, the
small ones and the published ones, a hash of the ids of each text and of all of GSM8K, and the decoded
text where it is another one; for two of them hashes over every character of Unicode.
"""

import argparse
import json
import pathlib

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).resolve().parent
ROWS_PER_HASH = 1000

TEXTS = [
    "The quick brown fox jumps over the lazy dog; it's 12,345.67 metres away, isn't it?",
    "Falsches Üben von Xylophonmusik quält jeden größeren Zwerg.", "Voilà l'été: où est passé l'œuf de Noël ?",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.", "À noite, vovô Kowalsky vê o ímã cair.",
    "Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul ı", "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Zażółć gęślą jaźń — 3¼ litra.", "Árvíztűrő tükörfúrógép", "Þú dettur á rassinn í kvöld, ðæ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.", "Їжак і ґанок: п'ять під'їздів", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "Ἐν ἀρχῇ ἦν ὁ λόγος", "Жълтата дюля беше щастлива.", "Բարեւ աշխարհ", "გამარჯობა მსოფლიო", "नमस्ते दुनिया, आप कैसे हैं? १२३",
    "আমি বাংলায় গান গাই। ৪৫৬", "வணக்கம் உலகம்", "తెలుగు వికీపీడియా", "ಕನ್ನಡ ನುಡಿ", "മലയാളം ഭാഷ", "සිංහල", "สวัสดีชาวโลก ๑๒๓ กำลัง",
    "ສະບາຍດີ", "မြန်မာဘာသာ", "ភាសាខ្មែរ", "བོད་སྐད", "አማርኛ ቋንቋ", "مرحبا بالعالم، كيف حالك؟ ٤٥٦", "بِسْمِ ٱللَّهِ ٱلرَّحْمَٰنِ", "فارسی ۷۸۹ می‌خواهم",
    "اردو زبان", "שלום עולם, מה שלומך?", "שָׁלוֹם", "\u202eright to left\u202c and \u2066isolated\u2069", "你好，世界！今天是2024年12月2日。",
    "繁體中文測試：龍龜鬱", "いろはにほへと ちりぬるを。カタカナも。", "ﾊﾝｶｸｶﾀｶﾅ ｶﾞｷﾞ", "㈱㌔㍿①⑳", "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "\u1112\u1161\u11ab\u1100\u1173\u11af", "Tiếng Việt có nhiều dấu: ắ ằ ẳ ẵ ặ.", "Tie\u0302\u0301ng Vie\u0323\u0302t",
    "e\u0301 é e\u0308\u0301 \u1e69 s\u0323\u0307 s\u0307\u0323 A\u030a \u212b \u00c5", "q\u0307\u0323 q\u0323\u0307 \u0344 \u0958 \u2126 \u212a",
    "\ufb01 \ufb02 \ufb1d \uf900 \uf9d1 \ufa30", "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324a\u0335l\u034bg\u0336o\u0321",
    "👩‍👩‍👧 🇩🇪 👍🏽 ☃️ 🏴‍☠️ 🏳️‍🌈 1️⃣", "😀😁😂🤣😃", "👨🏾‍🤝‍👨🏻🧑🏼‍🚀", "𝕳𝖊𝖑𝖑𝖔 𝒲ℴ𝓇𝓁𝒹", "𐍈𐌰 𓂀𓅓 🂡 𠜎𠜱", "ᚠᛇᚻ ᛒᛦᚦ", "a\u200bb\u200dc\u00a0d\u2003e\u3000f\u2009g\u205fh\u1680i",
    "\t tabs\tand   spaces \n\n\n  new\r\nlines\r", "line\u2028separator\u2029paragraph\u0085next\u000bvertical\u000cform", "x=1;y=[2,3];def f(a):\n    return a**2  # ½ Ⅷ ² ٣",
    "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * b[i];\n\t}\n", "<div class=\"a\">&nbsp;&lt;</div>\n\n\n<!-- end -->", "SELECT * FROM t WHERE a='b''c' -- x",
    "don't I'll we've SHE'S it's 'tis 'LL y'all'd've Oʼ’s d'\u017f 'ſ 'K", "DON'T I'M YOU'RE WE'VE HE'D 'Re 'vE",
    "\u0000\u0001\u007f\u0080\u009f\ufffd\ufeff\U0010ffff", "ﬁ ﬂ ſ K Å ℵ ∑∫√ ≤≥≠ → ⇒ ∀x∈ℝ ∎", "$\\frac{\\partial f}{\\partial x} = \\sum_{i=1}^{n} x_i^2$",
    "0 00 000 0000 1234567890 12-34 1e-5 0x7F 3.14159 1,000,000 1_000", "२०२४ ٢٠٢٤ ２０２４ 二〇二四 Ⅻ ⅓ 10⁻³ x₁", "999 9999 99999 999999 9999999 a1b22c333d4444",
    "€100 £20 ¥3000 ₹45 ₿0.5 ¢ ₩", "“curly” ‘quotes’ «guillemets» „low“ … — – ‐ ‑ ―", "¿Qué? ¡Sí! № § ¶ † ‡ • ‰", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "          ten spaces          ", "\n\n\n\n", " ", "\n", "  \n  ", " \t \n \t ", "a b  c   d    e     f", "word \nword\n word\n\n word", "Mr. O'Neill-Smith's e-mail: a.b@c-d.org, https://x.y/z?q=1&r=%20#f",
    "snake_case camelCase PascalCase kebab-case SCREAMING_SNAKE", "Antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "…..!!!???;;;:::---___===+++***///\\\\\\|||~~~```", "(((([[[[{{{{<<<<>>>>}}}}]]]]))))", "a\u180eb \u180e1", "\u00ad soft\u00adhyphen \u034f joiner \u2060 \ufe0f", "ꦲꦏ꧀ꦱꦫꦗꦮ ᠮᠣᠩᠭᠣᠯ",
    "\u0915\u094d\u200d\u0937 \u0915\u094d\u0937", "I\u0307 i\u0307 \u0130 \u0131", "ǅ ǈ ǋ ǲ ß ẞ ŉ", "mixed 中English文и русский with العربية and עברית 123",
]

USER = ["What is 12 + 30?", "\n\n  line breaks first", "日本語 é 😀 مرحبا\n", "", " spaces  "]
ANSWER = ["It is 42.", "#### 42\n", "two\n\nparagraphs", "né 1,234.50", "好的。"]


def turns(count, offset=0):
    messages = []
    for i in range(count):
        messages.append({"role": "user", "content": USER[(i + offset) % len(USER)]})
        messages.append({"role": "assistant", "content": ANSWER[(i + offset) % len(ANSWER)]})
    return messages


def system(content):
    return [{"role": "system", "content": content}]


def said(role, content):
    return {"role": role, "content": content}


COMMON = [turns(1)[:1], turns(1), turns(3), turns(3, 2)[:5], system("Be brief.\n") + turns(2)[:3],
          system("") + turns(1, 2)[:1], system("Tu es poli — «oui». 你好") + turns(2, 3),
          system("A") + turns(1) + system("late") + turns(1, 1)[:1]]
THOUGHTS = [[said("user", "6 x 7?"), said("assistant", "<think>\nSix sevens.\n</think>\n\n42."), said("user", "And 8?"),
             said("assistant", "<think>\n\nOne more 6.\n\n</think>\n\n48.")],
            [said("user", "6 x 7?"), said("assistant", "<think>\nSix sevens.\n</think>\n\n42."), said("user", "Sure?")],
            [said("user", "6 x 7?"), said("assistant", "It starts. </think>\n\n42."), said("assistant", "Yes, 42.")]]
TOOLS = [[said("user", "Weather?"), said("assistant", "I look."), said("tool", "{\"c\": 12}"), said("tool", "wind: 3."),
          said("assistant", "12 degrees."), said("user", "Thanks")],
         [said("user", "Weather?"), said("assistant", "I look."), said("tool", "sun\n")]]
TODAY = "03 Feb 2025"
# Template → tokenizer, conversations, options of Troupe's with the Jinja variables that say the same.
CHATS = {
    "qwen2_5": ("qwen", COMMON + TOOLS, [({}, {})]),
    "qwen3": ("qwen3", COMMON + THOUGHTS + TOOLS, [({}, {}), ({"empty_think_block": True}, {"enable_thinking": False})]),
    "qwen3_instruct_2507": ("qwen3", COMMON + TOOLS, [({}, {})]),
    "smollm2": ("smollm", COMMON, [({}, {})]),
    "llama3": ("llama3", COMMON, [({}, {})]),
    "llama3_1": ("llama3", COMMON, [({}, {}), ({"date": TODAY}, {"date_string": TODAY})]),
    # Left alone, Jinja would ask the clock.
    "llama3_2": ("llama3", COMMON, [({}, {"date_string": "26 Jul 2024"}), ({"date": TODAY}, {"date_string": TODAY})]),
}
TOOL_MARKS = ["<tool_response>", "</tool_response>"]


def small_tokenizer(name):
    fixtures = HERE.parent / "fixtures"
    if name != "qwen3":
        return Tokenizer.from_file(str(fixtures / name / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(fixtures / "qwen/tokenizer.json"))
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in TOOL_MARKS])
    return tokenizer


def chat_cases(templates):
    for name, (tokenizer_name, conversations, variants) in CHATS.items():
        jinja = (templates / f"{name}.jinja").read_text()
        fast = PreTrainedTokenizerFast(tokenizer_object=small_tokenizer(tokenizer_name), chat_template=jinja,
                                       bos_token="<|begin_of_text|>" if tokenizer_name == "llama3" else None)
        for options, variables in variants:
            for messages in conversations:
                asks = messages[-1]["role"] != "assistant"
                text = fast.apply_chat_template(messages, add_generation_prompt=asks, tokenize=False, **variables)
                yield {"template": name, "tokenizer": tokenizer_name, "options": options, "messages": messages,
                       "add_generation_prompt": asks, "text": text,
                       "ids": fast(text, add_special_tokens=False)["input_ids"]}


def hash_of(ids, state=0xcbf29ce484222325):
    """FNV-1a over whole ids and an end mark."""
    for value in [*ids, 0xffffffff]:
        state = (state ^ value) * 0x100000001b3 % 2**64
    return state


def text_facts(tokenizer, rows):
    facts = {"ids": [], "decoded": {}, "gsm8k": {}}
    for i, text in enumerate(TEXTS):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        facts["ids"].append(f"{hash_of(ids):016x}")
        if tokenizer.decode(ids) != text:
            facts["decoded"][str(i)] = tokenizer.decode(ids)
    for part, pieces in rows.items():
        hashes = []
        for first in range(0, len(pieces), ROWS_PER_HASH):
            state = 0xcbf29ce484222325
            for text in pieces[first:first + ROWS_PER_HASH]:
                state = hash_of(tokenizer.encode(text, add_special_tokens=False).ids, state)
            hashes.append(f"{state:016x}")
        facts["gsm8k"][part] = hashes
    return facts


def characters():
    """All but surrogates, private ones and empty planes, a thousand at a time."""
    blocks = [range(first, first + 0x400) for first in [*range(0, 0xD800, 0x400), *range(0xF800, 0x32400, 0x400),
                                                        *range(0xE0000, 0xE0400, 0x400)]]
    return [[chr(c) for c in block if not 0xE000 <= c < 0xF900] for block in blocks]


def character_facts(tokenizer):
    """A hash per block: every character among letters, digits, spaces and twice."""
    hashes = []
    for block in characters():
        state = 0xcbf29ce484222325
        for c in block:
            state = hash_of(tokenizer.encode(f"a{c} 1{c}{c}b\n{c}", add_special_tokens=False).ids, state)
        hashes.append(f"{state:016x}")
    return hashes


def lines_of(items):
    return ",\n".join(json.dumps(item, ensure_ascii=True, separators=(",", ":")) for item in items)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("reference", type=pathlib.Path, help="what scripts/fetch_reference_text made")
    parser.add_argument("--shared", type=pathlib.Path, default=HERE.parents[4] / "shared")
    arguments = parser.parse_args()
    (HERE / "chats.json").write_text("[\n" + lines_of(chat_cases(arguments.reference / "templates")) + "\n]\n")

    rows = {}
    for part in ("train", "test"):
        lines = [json.loads(line) for line in open(arguments.shared / f"data/gsm8k/{part}.jsonl")]
        rows[part] = [line[key] for line in lines for key in ("question", "answer")]
    tokenizers = {name: small_tokenizer(name) for name in ("qwen", "llama3", "gpt2", "smollm", "metaspace")}
    tokenizers["stories260K"] = Tokenizer.from_file(str(arguments.shared / "models/stories260K/tokenizer.json"))
    for folder in sorted((arguments.reference / "tokenizers").iterdir()):
        tokenizers[f"published {folder.name}"] = Tokenizer.from_file(str(folder / "tokenizer.json"))
    facts = [f"{json.dumps(name)}: {json.dumps(text_facts(tokenizer, rows))}" for name, tokenizer in tokenizers.items()]
    every = {name: character_facts(tokenizers[name]) for name in ("qwen", "smollm")}
    texts = ",\n".join(json.dumps(text) for text in TEXTS)
    (HERE / "texts.json").write_text('{"texts": [\n' + texts + '\n],\n"tokenizers": {\n' + ",\n".join(facts) + '\n},\n"characters": ' +
                                       json.dumps(every, indent=0) + "}\n")


if __name__ == "__main__":
    main()
