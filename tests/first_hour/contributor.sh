# A contributor: an algorithm in a file of their own, a reward of their own, and the tests that hold them.
python - <<'EOF'
import pathlib, re
for page, name in (("add_an_algorithm", "mine.py"), ("add_a_reward", "polite.py")):
    text = pathlib.Path(f"notebooks/{page}.md").read_text()
    pathlib.Path(name).write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1))
EOF
rljax algorithms dapo
rljax train --smoke --steps 2 --algorithm mine.py:my_algorithm --run runs/idea
rljax train --smoke --steps 2 --algorithm grpo --reward polite.py:says_please --run runs/polite
