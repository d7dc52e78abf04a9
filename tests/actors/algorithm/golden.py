#!/usr/bin/env python3
"""Recipe of golden.json: verl's formulas, where Troupe agrees with them, on one padded batch.

Plain Python, no packages. Restated from shared/reference/verl.md section 3 (masked means with
1e-8, whitening with an unbiased variance, std + 1e-6), not from the C++ code or its tests.
Run:  python3 tests/actors/algorithm/golden.py > tests/actors/algorithm/golden.json
"""
import json
import math
import random

ROWS, WIDTH = 6, 7
UIDS = [11, 5, 11, 5, 5, 11]


def clamp(x, low, high):
    return max(low, min(high, x))


def make_batch():
    draw = random.Random(20260822)
    names = ["log_probs", "old", "reference", "advantages", "rewards", "values", "old_values",
             "returns", "rollout"]
    batch = {name: [[0.0] * WIDTH for _ in range(ROWS)] for name in names}
    mask = [[0] * WIDTH for _ in range(ROWS)]
    for b in range(ROWS):
        length = draw.randint(3, WIDTH)
        for t in range(length):
            mask[b][t] = 0 if t == 1 and b % 3 == 0 else 1  # rows 0 and 3 hold a tool token
            log_prob = -3 * draw.random()
            values = [log_prob, log_prob + draw.gauss(0, 0.3), log_prob + draw.gauss(0, 0.8),
                      draw.gauss(0, 1), draw.gauss(0, 0.1), draw.gauss(0, 1), draw.gauss(0, 1),
                      draw.gauss(0, 1), log_prob + draw.gauss(0, 0.5)]
            for name, value in zip(names, values):
                batch[name][b][t] = round(value, 4) if mask[b][t] else 0.0
        batch["rewards"][b][length - 1] += float(draw.randint(0, 3))
    batch["mask"] = mask
    batch["uids"] = UIDS
    batch["baselines"] = [round(draw.gauss(0, 1), 4) for _ in range(ROWS)]
    return batch


BATCH = make_batch()
MASK = BATCH["mask"]


def table(f):
    return [[f(b, t) if MASK[b][t] else 0.0 for t in range(WIDTH)] for b in range(ROWS)]


def masked_mean(x):
    total = sum(x[b][t] * MASK[b][t] for b in range(ROWS) for t in range(WIDTH))
    return total / (sum(map(sum, MASK)) + 1e-8)


def whiten(x):
    mean = masked_mean(x)
    count = sum(map(sum, MASK))
    variance = masked_mean([[(v - mean) ** 2 for v in row] for row in x]) * count / (count - 1)
    return table(lambda b, t: (x[b][t] - mean) / math.sqrt(variance + 1e-8))


SCORES = [sum(row) for row in BATCH["rewards"]]
LENGTHS = [sum(row) for row in MASK]


def group(b):
    return [i for i in range(ROWS) if UIDS[i] == UIDS[b]]


def mean_std(b):
    scores = [SCORES[i] for i in group(b)]
    mean = sum(scores) / len(scores)
    return mean, math.sqrt(sum((s - mean) ** 2 for s in scores) / (len(scores) - 1))


def spread(per_row):
    return table(lambda b, t: per_row[b])


def gae(gamma, lam):
    advantages = [[0.0] * WIDTH for _ in range(ROWS)]
    for b in range(ROWS):
        next_value = trace = 0.0
        for t in reversed(range(WIDTH)):
            delta = BATCH["rewards"][b][t] + gamma * next_value - BATCH["values"][b][t]
            new_trace = delta + gamma * lam * trace
            m = MASK[b][t]
            next_value = BATCH["values"][b][t] * m + (1 - m) * next_value
            trace = new_trace * m + (1 - m) * trace
            advantages[b][t] = trace
    returns = table(lambda b, t: advantages[b][t] + BATCH["values"][b][t])
    return whiten(advantages), returns


def to_go(gamma):
    result = [[0.0] * WIDTH for _ in range(ROWS)]
    for b in range(ROWS):
        running = 0.0
        for t in reversed(range(WIDTH)):
            if MASK[b][t]:
                running = BATCH["rewards"][b][t] + gamma * running
                result[b][t] = running
    return result


def passk():
    result = [0.0] * ROWS
    for uid in set(UIDS):
        rows = [b for b in range(ROWS) if UIDS[b] == uid]
        ranked = sorted(rows, key=lambda b: -SCORES[b])
        result[ranked[0]] = (SCORES[ranked[0]] - SCORES[ranked[1]]) / (mean_std(ranked[0])[1] + 1e-6)
    return result


def opo(b):
    rows = group(b)
    baseline = sum(LENGTHS[i] * SCORES[i] for i in rows) / sum(LENGTHS[i] for i in rows)
    return SCORES[b] - baseline


def advantages():
    alpha = ROWS / max(1, sum(1 for s in SCORES if s != 0))
    centred = [SCORES[b] - mean_std(b)[0] for b in range(ROWS)]
    gae_advantages, gae_returns = gae(0.97, 0.9)
    returns = to_go(0.95)
    return {
        "gae": gae_advantages,
        "gae_returns": gae_returns,
        "grpo": spread([centred[b] / (mean_std(b)[1] + 1e-6) for b in range(ROWS)]),
        "dr_grpo": spread(centred),
        "grpo_passk": spread(passk()),
        "rloo": spread([centred[b] * len(group(b)) / (len(group(b)) - 1) for b in range(ROWS)]),
        "reinforce_plus_plus": whiten(returns),
        "reinforce_plus_plus_baseline": whiten(spread(centred)),
        "remax": table(lambda b, t: to_go(1.0)[b][t] - BATCH["baselines"][b]),
        "opo": spread([opo(b) for b in range(ROWS)]),
        "gpg": spread([alpha * c for c in centred]),
    }


def aggregate(loss, mode, factor=7):
    rows = [sum(loss[b][t] * MASK[b][t] for t in range(WIDTH)) for b in range(ROWS)]
    if mode == "token-mean":
        return sum(rows) / sum(LENGTHS)
    if mode == "token-sum":
        return sum(rows)
    if mode == "seq-mean-token-sum":
        return sum(rows) / ROWS
    if mode == "seq-mean-token-sum-norm":
        return sum(rows) / ROWS / factor
    return sum(rows[b] / (LENGTHS[b] + 1e-8) for b in range(ROWS)) / ROWS


MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm",
         "seq-mean-token-mean"]
LOW, HIGH, DUAL = 0.2, 0.28, 3.0


def delta(b, t):
    return clamp(BATCH["log_probs"][b][t] - BATCH["old"][b][t], -20, 20)


def ppo(advantage, ratio):
    return max(-advantage * ratio, -advantage * clamp(ratio, 1 - LOW, 1 + HIGH))


def vanilla(b, t):
    advantage = BATCH["advantages"][b][t]
    loss = ppo(advantage, math.exp(delta(b, t)))
    return min(loss, -advantage * DUAL) if advantage < 0 else loss


def gspo(b, t):
    mean = sum(delta(b, i) * MASK[b][i] for i in range(WIDTH)) / max(1, LENGTHS[b])
    return ppo(BATCH["advantages"][b][t], math.exp(min(mean, 10)))


def cispo(b, t):
    ratio = clamp(math.exp(delta(b, t)), 1 - LOW, 1 + HIGH)
    return -ratio * BATCH["advantages"][b][t] * BATCH["log_probs"][b][t]


def sapo(b, t):
    advantage = BATCH["advantages"][b][t]
    tau = 1.0 if advantage > 0 else 1.05
    return -advantage * 4 / tau / (1 + math.exp(-tau * (math.exp(delta(b, t)) - 1)))


def dppo_tv(b, t):
    advantage, log_prob = BATCH["advantages"][b][t], BATCH["log_probs"][b][t]
    moved = math.exp(log_prob) - math.exp(BATCH["old"][b][t])
    kept = moved <= HIGH if advantage > 0 else moved >= -LOW
    return -advantage * min(math.exp(delta(b, t)), DUAL) * log_prob if kept else 0.0


def geo_mean():
    total = 0.0
    for b in range(ROWS):
        held = 0.0
        for t in range(WIDTH):
            if MASK[b][t]:
                advantage, d = BATCH["advantages"][b][t], delta(b, t)
                sign = (advantage > 0) - (advantage < 0)
                held += sign * min(sign * d, sign * clamp(d, -LOW, HIGH))
        advantage = sum(BATCH["advantages"][b]) / (LENGTHS[b] + 1e-8)
        total += -advantage * math.exp(held / (LENGTHS[b] + 1e-8))
    return total / ROWS


def kl_cov(ratio=0.1, coefficient=0.5):
    tokens = [(b, t) for b in range(ROWS) for t in range(WIDTH) if MASK[b][t]]
    mean_a = sum(BATCH["advantages"][b][t] for b, t in tokens) / len(tokens)
    mean_l = sum(BATCH["log_probs"][b][t] for b, t in tokens) / len(tokens)
    ranked = sorted(tokens, key=lambda k: -(BATCH["advantages"][k[0]][k[1]] - mean_a)
                    * (BATCH["log_probs"][k[0]][k[1]] - mean_l))
    chosen = set(ranked[:max(1, int(ratio * len(tokens)))])
    return table(lambda b, t: -BATCH["advantages"][b][t] * math.exp(delta(b, t))
                 + (coefficient * abs(delta(b, t)) if (b, t) in chosen else 0.0))


def losses():
    result = {}
    tables = {"vanilla": table(vanilla), "cispo": table(cispo), "gspo": table(gspo),
              "sapo": table(sapo), "dppo_tv": table(dppo_tv), "kl_cov": kl_cov(),
              "gpg": table(lambda b, t: -BATCH["advantages"][b][t] * BATCH["log_probs"][b][t])}
    for name, loss in tables.items():
        result[name] = {mode: aggregate(loss, mode) for mode in MODES}
    result["geo_mean"] = {"seq-mean-token-mean": geo_mean()}
    return result


def kl(name, b, t):
    d = BATCH["log_probs"][b][t] - BATCH["reference"][b][t]
    if name == "k1":
        return d
    if name == "abs":
        return abs(d)
    if name == "k2":
        return d * d / 2
    return clamp(math.exp(clamp(-d, -20, 20)) + d - 1, -10, 10)


def value_loss(b, t, clip=0.5):
    value, target = BATCH["values"][b][t], BATCH["returns"][b][t]
    held = clamp(value, BATCH["old_values"][b][t] - clip, BATCH["old_values"][b][t] + clip)
    return 0.5 * max((value - target) ** 2, (held - target) ** 2)


def controller():
    beta, path = 0.001, []
    for current in [0.5, 0.12, 0.02, 0.1]:
        beta *= 1 + clamp(current / 0.1 - 1, -0.2, 0.2) * 1024 / 10000
        path.append(beta)
    return path


print(json.dumps({
    "batch": BATCH,
    "advantages": advantages(),
    "losses": losses(),
    "kl": {name: table(lambda b, t, name=name: kl(name, b, t))
           for name in ["k1", "abs", "k2", "k3"]},
    "value_loss": aggregate(table(value_loss), "token-mean"),
    "rollout_weights_token": table(lambda b, t: min(
        math.exp(BATCH["old"][b][t] - BATCH["rollout"][b][t]), 2.0)),
    "adaptive_controller": controller(),
    "overlong": [[n, min(-(n - (100 - 20)) / 20 * 1.5, 0)] for n in [10, 80, 81, 95, 100]],
}, indent=None, separators=(",", ":")))
