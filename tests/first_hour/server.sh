# A person with a server and no screen: settings in a file, output in a file, a machine that stops, several devices.
export XLA_FLAGS="--xla_force_host_platform_device_count=2"
rljax config --smoke --steps 400 --checkpoint-every 5 > my.yaml
rljax train --config my.yaml --run runs/night --resume auto > night.txt 2>&1 &
job=$!
until grep -qs '"phase": "rl"' runs/night/metrics.jsonl; do kill -0 $job; sleep 0.2; done
kill -TERM $job
code=0; wait $job || code=$?
test $code -eq 130
if grep -q $'\r' night.txt; then exit 1; fi
tail -1 night.txt | grep -- "rljax train --resume"

# The same command again goes on by itself; then the run is cut short, and evaluated on the saved model.
rljax train --config my.yaml --run runs/night --resume auto --checkpoint-every 5 --steps 401 > more.txt 2>&1 &
job=$!
until grep -qs "Resumed at RL step" more.txt; do kill -0 $job; sleep 0.2; done
kill -KILL $job
wait $job || true
python - <<'EOF'
import json, pathlib
rows = [json.loads(line) for line in pathlib.Path("runs/night/metrics.jsonl").read_text().splitlines()]
steps = [row["step"] for row in rows if row["phase"] == "rl"]
assert steps == list(range(1, len(steps) + 1)), steps
EOF
rljax eval runs/night --limit 8 --out answers
rljax train --smoke --steps 2 --run runs/cut --fsdp 2
