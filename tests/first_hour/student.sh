# A student with a laptop: from the clone to a trained model, as the README tells it.
rljax --version
rljax train --smoke --run runs/smoke
rljax train --run runs/first | tee first.txt
grep -q "before RL" first.txt
rljax eval runs/first | tee eval.txt
python - <<'EOF'
import json, pathlib
rows = [json.loads(line) for line in pathlib.Path("runs/first/metrics.jsonl").read_text().splitlines()]
accuracy = [row["accuracy"] for row in rows if row["phase"] == "eval" and row["step"] == 100]
assert accuracy[-1] >= 0.9, accuracy
EOF
rljax eval runs/first --samples 16 --k 1 4 16
rljax sample runs/first --prompt "8+9+7+2=" | grep "26"
rljax plot runs/smoke runs/first
rljax explain clip_fraction
rljax train --resume runs/first --steps 102
