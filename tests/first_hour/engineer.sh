# An engineer who knows TRL: their own model folder, rows and reward function, on the command line and in Python.
rljax train --smoke --run runs/base
rljax export runs/base my-model
python -c "
from transformers import AutoTokenizer
ids = AutoTokenizer.from_pretrained('my-model')('3+4=')['input_ids']
assert len(ids) >= 4, ids"

python - <<'EOF'
import json, pathlib
rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10) for b in range(10)]
pathlib.Path("my_problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
pathlib.Path("mine.py").write_text(
    "def brief_and_right(prompts, completions, answer, **columns):\n"
    "    return [float(a in c.split()) - 0.001 * len(c) for c, a in zip(completions, answer)]\n"
)
EOF
rljax preprocess my_problems.jsonl prepared

# A flag of another library is answered with ours.
if rljax train --model my-model --dataset my_problems.jsonl --num-generations 8 2> answer.txt; then exit 1; fi
grep -- "--group-size" answer.txt

rljax train --model my-model --dataset my_problems.jsonl --algorithm grpo --reward mine.py:brief_and_right \
    --max-response-tokens 24 --prompts 8 --group-size 4 --steps 3 --heldout-problems 16 --run runs/mine
rljax eval runs/mine --samples 2 --limit 8
rljax export runs/mine trained --dtype bfloat16

python - <<'EOF'
import rljax
from mine import brief_and_right

config = rljax.TrainConfig.flat(
    model="my-model", dataset="my_problems.jsonl", algorithm="grpo", steps=2, prompts=8, group_size=4, max_response_tokens=24,
    heldout_problems=16,
)
result = rljax.train(config, reward=brief_and_right)
print(result.accuracy_before, result.accuracy_after, result.run)
print(rljax.evaluate(result.run, samples=2, limit=8, reward=brief_and_right).headline())
EOF
