#!/usr/bin/env python3
"""GRPO steps of one model on one machine: Troupe against TRL's GRPOTrainer, on CPU, float32.

The same model folder (SmolLM2-135M-Instruct, see docs/model.md), the same rows, prompts a step,
samples a prompt and bound of completions, no KL term, one optimiser step a batch, no recomputation
of activations, no extra forward pass for old log-probs. TRL runs on transformers' own generation,
in one process with a thread for each core; Troupe runs two ranks of one thread.
Two workloads: `natural`, where samples end when the model ends them, as in any real run, and
`full`, where end-of-sequence is ignored and every sample has its full length on both sides, so that
nobody gains by not padding. Tokens are those of prompts and completions without padding; the first
step of each side is not counted. Bar: 3x in tokens a second, natural lengths.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import peers

HERE = Path(__file__).resolve().parent


def trl_member(words: list[str]) -> int:
    """The child that runs TRL; prints one line of JSON."""
    asked = json.loads(words[0])
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(asked["threads"])
    rows = [json.loads(line) for line in open(asked["rows"])]
    data = Dataset.from_list([{"prompt": row["prompt"],
                               "answer": str(row["reward_model"]["ground_truth"])}
                              for row in rows])
    tokens: list[int] = []  # of the step that is under way

    def reward(prompts, completions, answer, completion_ids, **_) -> list[float]:
        tokens.append(sum(len(ids) for ids in completion_ids))
        if asked["full"] and any(len(ids) != asked["completion"] for ids in completion_ids):
            raise AssertionError("a completion has not the length that was asked for")
        lengths = [len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True,
                                                     return_dict=True)["input_ids"])
                   for prompt in prompts]
        tokens[-1] += sum(lengths)
        return [float(right in text[0]["content"]) for text, right in zip(completions, answer)]

    tokenizer = AutoTokenizer.from_pretrained(asked["model"])
    model = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32)
    batch = asked["prompts"] * asked["samples"]
    micro = asked["micro"]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, fp16=False, seed=1, report_to=[],
            per_device_train_batch_size=micro, gradient_accumulation_steps=batch // micro,
            steps_per_generation=batch // micro, num_generations=asked["samples"],
            max_completion_length=asked["completion"], temperature=1.0, beta=0.0,
            generation_kwargs={"min_new_tokens": asked["completion"]} if asked["full"] else None,
            gradient_checkpointing=False, learning_rate=1e-6, max_grad_norm=1.0,
            lr_scheduler_type="constant", max_steps=asked["steps"] + 1, num_iterations=1,
            save_strategy="no", logging_strategy="no", disable_tqdm=True)

        ends: list[float] = []
        spent = {"generation": 0.0}

        class Clock(TrainerCallback):
            def on_step_end(self, *_, **__) -> None:
                ends.append(time.perf_counter())
                if len(ends) == 1:
                    tokens.clear()
                    spent["generation"] = 0.0

        trainer = GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=data,
                              processing_class=tokenizer, callbacks=[Clock()])
        generate = trainer.model.generate

        def timed(*given, **named):
            begin = time.perf_counter()
            made = generate(*given, **named)
            spent["generation"] += time.perf_counter() - begin
            return made

        trainer.model.generate = timed
        trainer.train()
    steps = len(ends) - 1
    seconds = (ends[-1] - ends[0]) / steps
    print(json.dumps({"tokens_per_s": sum(tokens) / steps / seconds, "step_s": seconds,
                      "generation_s": spent["generation"] / steps,
                      "tokens": sum(tokens) / steps}), flush=True)
    return 0


def completion_of(options, full: bool) -> int:
    return options.full_completion if full else options.completion


def trl_side(options, full: bool) -> peers.Figures:
    asked = {"model": options.model, "rows": options.rows, "prompts": options.prompts,
             "samples": options.samples, "completion": completion_of(options, full),
             "steps": options.steps, "micro": options.micro, "full": full,
             "threads": len(options.cores.split(","))}
    done = subprocess.run([sys.executable, __file__, "--trl", json.dumps(asked)],
                          capture_output=True, text=True, check=False,
                          env=dict(os.environ, HF_HUB_OFFLINE="1"))
    if done.returncode != 0:
        peers.stop(f"TRL failed: {done.stderr.strip()[-1500:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def troupe_side(options, full: bool) -> peers.Figures:
    program = Path(options.build) / "apps" / "troupe"
    ranks = len(options.cores.split(","))
    with tempfile.TemporaryDirectory() as folder:
        words = [f"actor_rollout_ref.model.path={options.model}",
                 f"data.train_files=[{options.rows}]",
                 f"data.train_batch_size={options.prompts}",
                 f"data.max_prompt_length={options.prompt_max}",
                 f"data.max_response_length={completion_of(options, full)}",
                 f"actor_rollout_ref.actor.ppo_mini_batch_size={options.prompts}",
                 f"actor_rollout_ref.rollout.n={options.samples}",
                 f"actor_rollout_ref.rollout.ignore_eos={str(full).lower()}",
                 f"trainer.n_gpus_per_node={ranks}",
                 f"trainer.total_training_steps={options.steps + 1}",
                 f"trainer.default_local_dir={folder}/run", *options.set]
        # Each rank of Troupe's is one thread.
        done = subprocess.run([str(program), "train", str(HERE / "grpo.yaml"), *words],
                              capture_output=True, text=True, check=False,
                              env=dict(os.environ, OMP_NUM_THREADS="1"))
        if done.returncode != 0:
            peers.stop(f"{program} ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
        steps = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")][1:]

    def mean(name: str) -> float:
        return sum(step[name] for step in steps) / len(steps)

    if full and any(step["response_length/min"] != options.full_completion for step in steps):
        peers.stop("a completion of Troupe's has not the length that was asked for")
    return {"tokens_per_s": mean("perf/total_num_tokens") / mean("perf/time_per_step"),
            "step_s": mean("perf/time_per_step"), "generation_s": mean("timing_s/gen"),
            "tokens": mean("perf/total_num_tokens"), "update_s": mean("timing_s/update_actor"),
            "publish_s": mean("timing_s/update_weights")}


def libtorch_of(options) -> str:
    """The folder of the libtorch_cpu that Troupe's program loads."""
    program = Path(options.build) / "apps" / "troupe-torch"
    if not program.exists():
        peers.stop(f"{program} is not there; build `troupe`, or name the folder by --build")
    lines = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    for line in lines.stdout.splitlines():
        if "libtorch_cpu" in line:
            return line.split("=>")[1].split("(")[0].strip()
    return "unknown"


def compare(options, full: bool) -> int:
    ours, theirs = peers.rounds(options, lambda: troupe_side(options, full),
                                lambda: trl_side(options, full))
    sizes = peers.column(ours, "tokens")[0], peers.column(theirs, "tokens")[0]
    if full and abs(sizes[0] / sizes[1] - 1) > 0.02:
        peers.stop(f"{sizes[0]:.0f} tokens a step here, {sizes[1]:.0f} there: not the same work")
    print(f"{options.prompts} prompts x {options.samples} samples, completions of "
          f"{'' if full else 'at most '}{completion_of(options, full)} tokens; {sizes[0]:.0f} and "
          f"{sizes[1]:.0f} tokens a step with prompts")

    def rest(figures: list[peers.Figures]) -> list[float]:
        return [1e3 * (one["step_s"] - one["generation_s"]) / one["tokens"] for one in figures]

    def generation(figures: list[peers.Figures]) -> list[float]:
        return [1e3 * one["generation_s"] / one["tokens"] for one in figures]

    return peers.report(options, "trl", [
        peers.Row("GRPO, " + ("full lengths" if full else "natural lengths"), "tokens/s",
                  peers.column(ours, "tokens_per_s"), peers.column(theirs, "tokens_per_s"),
                  bar=0 if full else 3),
        peers.Row("  generation", "ms a token", generation(ours), generation(theirs),
                  more_is_better=False),
        peers.Row("  the rest: rewards, update", "ms a token", rest(ours), rest(theirs),
                  more_is_better=False)])


def main() -> int:
    parser = peers.parser(__doc__, rounds=3)
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--rows", required=True, help="rows as `troupe data make` writes them")
    parser.add_argument("--prompts", type=int, default=4, help="of a step (%(default)s)")
    parser.add_argument("--samples", type=int, default=8, help="of a prompt (%(default)s)")
    parser.add_argument("--completion", type=int, default=256,
                        help="tokens at most, natural lengths; TRL's default (%(default)s)")
    parser.add_argument("--full-completion", type=int, default=64,
                        help="tokens, full lengths (%(default)s)")
    parser.add_argument("--prompt-max", type=int, default=128, help="tokens (%(default)s)")
    parser.add_argument("--lengths", choices=["both", "natural", "full"], default="both",
                        help="workloads (%(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="counted, in a round (%(default)s)")
    parser.add_argument("--micro", type=int, default=16,
                        help="samples in one forward pass of TRL's (%(default)s)")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE",
                        help="more configuration of Troupe's side")
    options = parser.parse_args()
    if (options.prompts * options.samples) % options.micro != 0:
        peers.stop(f"--micro {options.micro} does not divide {options.prompts * options.samples}")
    peers.begin(options, ["trl", "transformers", "torch"])
    print(f"troupe's LibTorch: {libtorch_of(options)}")
    status = 0
    for full in {"natural": [False], "full": [True], "both": [False, True]}[options.lengths]:
        status |= compare(options, full)
    return status


if __name__ == "__main__":
    sys.exit(trl_member(sys.argv[2:]) if sys.argv[1:2] == ["--trl"] else main())
