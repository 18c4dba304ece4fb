"""Mutation tests of rljax/ops and rljax/algorithms: a seeded sample of small faults, and whether the module's tests notice each.

    pip install -e '.[test,mutation]'
    python tests/mutation/run.py ops --work /tmp/mutation                # resumes a session that was interrupted
    python tests/mutation/run.py ops --work /tmp/mutation --survivors    # after the tests have changed: survivors again
    python tests/mutation/run.py algorithms --work /tmp/mutation_of_algorithms

Only a copy of the checkout inside the work folder is ever mutated. cosmic-ray is imported late, because the tests collect
this file for doctests where cosmic-ray is not installed.
"""

import argparse
import ast
import hashlib
import importlib
import os
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("cosmic-ray.toml")
# Most of a run is the compilation of programs that a mutant does not touch: keep even the quickest to compile. And begin
# with the example in the docstring of the faulty function.
IN_CONFTEST = """
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.name.endswith(os.environ["FAULTY"]))
"""
ALGORITHMS = Path("tests/algorithms")
# What several algorithms share, and the tests that are about it; the file of an algorithm is tested by those that name it.
SHARED = {
    "ablations": ("test_reductions.py",),
    "algorithm": ("test_prepare.py",),
    "corrections": ("test_corrections.py",),
    "critic": ("test_against_loops.py", "test_reductions.py", "-k", "vapo or vc_ppo or pretrained"),
    "losses": (
        *("test_losses.py", "test_value_head.py", "test_against_loops.py"),
        *("-k", "test_losses or test_value_head or dapo or t1 or vapo or dppo"),
    ),
    "metrics": ("test_losses.py",),
    "preparation": (
        "test_prepare.py",
        "test_against_loops.py",
        "-k",
        "test_prepare or vapo_grpo or dapo_grpo or gepo or t1",
    ),
    "terms": ("test_against_loops.py", "test_defaults.py", "test_losses.py", "test_corrections.py"),
    "value_head": ("test_value_head.py",),
}
IMPORTED_ONCE = ("jax.numpy", "hypothesis.extra.numpy", "beartype", "optax")
# What others are built on shows a fault in them too.
ALSO = {"masked": ("group", "weights"), "checks": ("weights", "group", "gae", "categorical")}


def tests_of(module: Path) -> list[str]:
    """Arguments of pytest that test a module of the checkout, and its doctests."""
    if module.parts[1] == "ops":
        folder = Path("tests") / module.parent.relative_to("rljax")
        return [*(str(folder / f"test_{name}.py") for name in (module.stem, *ALSO.get(module.stem, ()))), str(module)]
    if module.stem in SHARED:
        words = SHARED[module.stem]
        return [*(str(ALGORITHMS / word) if word.endswith(".py") else word for word in words), str(module)]
    functions = [
        node.name for node in ast.parse(module.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)
    ]
    named = " or ".join(name for name in functions if not name.startswith("_"))
    return [*(str(ALGORITHMS / f"test_{about}.py") for about in ("against_loops", "defaults", "prepare")), "-k", named]


def copy_checkout(work: Path, package: str) -> str:
    """Fresh copy of what the tests need; returns the hash of the code that is mutated."""
    target = work / "checkout"
    for name in ("rljax", "tests", "experiments"):
        shutil.rmtree(target / name, ignore_errors=True)
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)
    with (target / "tests" / "conftest.py").open("a", encoding="utf-8") as file:
        file.write(IN_CONFTEST)
    files = sorted((target / "rljax" / package).rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def code_only(source: str) -> str | None:
    """The program without annotations, type aliases and the / and * of signatures; None where it does not parse."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    tree.body = [node for node in tree.body if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp))]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = None
        elif isinstance(node, ast.arguments):
            node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
            node.defaults += [default for default in node.kw_defaults if default is not None]
            node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
    return ast.dump(tree)


def is_fault(item) -> bool:
    """Whether a mutant is a program, and another than the original."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    (mutation,) = item.mutations
    source = mutation.module_path.read_text(encoding="utf-8")
    mutated = mutate_code(source, get_operator(mutation.operator_name)(**mutation.operator_args), mutation.occurrence)
    return code_only(mutated) not in (None, code_only(source))


def draw(database, config, sample: int, seed: int) -> None:
    """List every mutant, and mark all but a random sample as skipped."""
    from cosmic_ray.commands import init
    from cosmic_ray.modules import filter_paths, find_modules
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    modules = filter_paths(find_modules([Path(config["module-path"])]), config["excluded-modules"])
    init(sorted(modules), database, config.operators_config)
    excluded = re.compile("|".join(config.sub("filters", "operators-filter")["exclude-operators"]))
    order = sorted(database.work_items, key=lambda item: repr(item.mutations))
    random.Random(seed).shuffle(order)
    chosen = set()
    for item in order:
        if len(chosen) < sample and not excluded.match(item.mutations[0].operator_name) and is_fault(item):
            chosen.add(item.job_id)
    others = [item.job_id for item in order if item.job_id not in chosen]
    database.set_multiple_results(others, WorkResult(WorkerOutcome.SKIPPED))


def run_forked(command: str, timeout: float):
    """As `cosmic_ray.testing.run_tests`, in a fork: to import JAX anew for each mutant would take most of the time."""
    import pytest
    from cosmic_ray.work_item import TestOutcome

    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(int(timeout))  # which ends the process
                os.dup2(output.fileno(), sys.stdout.fileno())
                os.dup2(output.fileno(), sys.stderr.fileno())
                status = int(pytest.main(shlex.split(command)[1:]))
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return TestOutcome.KILLED if status else TestOutcome.SURVIVED, output.read().decode()


def execute(database, config, *, survivors: bool) -> None:
    """Test every mutant of the sample that has no result yet, and on request those that survived."""
    from cosmic_ray import mutating
    from cosmic_ray.work_item import TestOutcome

    mutating.run_tests = run_forked

    def command(module: Path) -> str:
        return config.test_command.format(tests=shlex.join(tests_of(module)))

    again = [item for item, result in database.completed_work_items if result.test_outcome == TestOutcome.SURVIVED]
    items = sorted([*database.pending_work_items, *(again if survivors else ())], key=lambda item: repr(item.mutations))
    random.Random(0).shuffle(items)  # so that what an interrupted session has done is a random sample too
    sound: set[Path] = set()
    for number, item in enumerate(items, 1):
        (mutation,) = item.mutations
        module = mutation.module_path
        if module not in sound:
            outcome, output = run_forked(command(module), config.timeout)
            if outcome != TestOutcome.SURVIVED:
                raise SystemExit(f"the tests of {module} fail without any fault put in:\n{output}")
            sound.add(module)
        os.environ["FAULTY"] = f".{mutation.definition_name}"
        result = mutating.mutate_and_test(item.mutations, command(module), config.timeout)
        database.set_result(item.job_id, result)
        place = f"{module.stem}:{mutation.start_pos[0]} {mutation.operator_name.rpartition('/')[2]}"
        print(f"{number}/{len(items)} {place} {result.test_outcome.value}", flush=True)


def report(database) -> str:
    """Score of each module and the diff of every survivor, as Markdown."""
    done = [(item.mutations[0], result) for item, result in database.completed_work_items if result.test_outcome]
    done.sort(key=lambda pair: repr(pair[0]))
    survived = [(mutation, result) for mutation, result in done if not result.is_killed]
    tested, alive = (Counter(mutation.module_path.stem for mutation, _ in pairs) for pairs in (done, survived))
    lines = [
        f"{len(done) - len(survived)} of {len(done)} mutants killed ({1 - len(survived) / max(len(done), 1):.1%}).",
        "",
    ]
    lines += ["| module | mutants | killed |", "|---|---|---|"]
    lines += [f"| {name} | {tested[name]} | {tested[name] - alive[name]} |" for name in sorted(tested)]
    for mutation, result in survived:
        place = f"{mutation.module_path.name}:{mutation.start_pos[0]} in `{mutation.definition_name}`"
        lines += ["", place, "", "```diff", result.diff, "```"]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", choices=("ops", "algorithms"), help="which folder of rljax is mutated")
    parser.add_argument("--work", type=Path, required=True, help="folder of the session: copy, results, report.md")
    parser.add_argument("--sample", type=int, default=300, help="mutants to test (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (%(default)s)")
    parser.add_argument("--survivors", action="store_true", help="test the survivors again, with the tests as they are now")
    options = parser.parse_args()

    os.environ |= {"JAX_PLATFORMS": "cpu", "FAULTY": "."}
    from cosmic_ray.config import load_config
    from cosmic_ray.work_db import WorkDB, use_db

    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    work = options.work.resolve()
    drawn = f"sample {options.sample}, seed {options.seed}, code {copy_checkout(work, options.package)}"
    note = work / "drawn.txt"
    if note.exists() and note.read_text(encoding="utf-8") != drawn:
        raise SystemExit(f"{note} says {note.read_text(encoding='utf-8')}, this is {drawn}: choose a new --work folder")
    os.chdir(work / "checkout")
    sys.path.insert(0, str(work / "checkout"))  # so that the copy is tested, not an installed rljax
    sys.dont_write_bytecode = True  # two mutants of one second would share it
    config = load_config(CONFIG)
    config["module-path"] = f"rljax/{options.package}"
    with use_db(work / "session.sqlite", WorkDB.Mode.create) as database:
        if not note.exists():
            draw(database, config, options.sample, options.seed)
            note.write_text(drawn, encoding="utf-8")
        try:
            execute(database, config, survivors=options.survivors)
        finally:  # an interrupt too leaves a report of what is done
            (work / "report.md").write_text(report(database), encoding="utf-8")
    print(work / "report.md")


if __name__ == "__main__":
    main()
