"""Mutation tests of rljax/ops and rljax/algorithms: do the tests of a module notice a seeded sample of small faults in it?

    pip install -e '.[test,mutation]'
    python tests/mutation/run.py ops --work /tmp/mutation                # starts a session or resumes an interrupted one
    python tests/mutation/run.py ops --work /tmp/mutation --survivors    # test the survivors again, after the tests have changed
    python tests/mutation/run.py algorithms --work /tmp/mutation_of_algorithms

Only a copy of the checkout inside the work folder is ever mutated. Each mutant is tested in a fork of a process that has
imported JAX, pytest and rljax, so the fork reimports only the faulty module and the modules that import it. Functions import
cosmic-ray themselves, because pytest collects this file for doctests even if cosmic-ray is not installed.
"""

import argparse
import ast
import contextlib
import gc
import hashlib
import importlib
import importlib.util
import io
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("cosmic-ray.toml")
# Most of a run's time is spent compiling programs that a mutant does not change, so even the smallest programs are cached. The
# doctest of the faulty function runs first, then the tests that call it directly or indirectly; of these, tests without Hypothesis
# run first. One failure ends the run, so Hypothesis does not shrink the failing example.
IN_CONFTEST = """
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
quick = hypothesis.settings(phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate], report_multiple_bugs=False)
hypothesis.settings.register_profile("mutation", quick)
hypothesis.settings.load_profile("mutation")


def order(item):
    faulty = os.environ["FAULTY"].split()
    if not hasattr(item, "function"):  # a doctest
        return 0 if item.name.rpartition(".")[2] in faulty[:1] else 3
    generated = getattr(item.obj, "hypothesis", None)
    code = (generated.inner_test if generated else item.function).__code__
    about = any(name in part for name in faulty for part in (*code.co_names, code.co_name))
    return (1 if about else 4) + bool(generated)


def pytest_collection_modifyitems(items):
    items.sort(key=order)
"""
ALGORITHMS = Path("tests/algorithms")
# Modules that several algorithms share, and their tests. An algorithm's own file is tested by the tests that name it.
SHARED = {
    "ablations": ("test_special_cases.py",),
    "algorithm": ("test_prepare.py", "test_defaults.py", "../test_records.py"),
    "corrections": ("test_corrections.py",),
    "critic": (
        *("test_losses_against_oracles.py", "test_special_cases.py", "test_value_head.py", "test_defaults.py"),
        *("-k", "vapo or vc_ppo or pretrained or outside_the_factories"),
    ),
    "losses": (
        *("test_losses.py", "test_value_head.py", "test_losses_against_oracles.py"),
        *("-k", "test_losses or test_value_head or dapo or t1 or vapo or dppo"),
    ),
    "metrics": ("test_losses.py",),
    "preparation": (
        "test_prepare.py",
        "test_losses_against_oracles.py",
        "-k",
        "test_prepare or vapo_grpo or dapo_grpo or gepo or t1",
    ),
    "part_equations": ("test_parts.py",),
    "parts": ("test_parts.py",),
    "part_checks": ("test_parts.py",),
    "terms": ("test_losses_against_oracles.py", "test_defaults.py", "test_losses.py", "test_corrections.py"),
    "value_head": ("test_value_head.py",),
}
# A fault in one of these modules also shows in the tests of the modules that use it.
ALSO = {
    "masked": ("group", "weights"),
    "arrays": ("checks", "weights", "group", "gae", "categorical"),
    "discounted_sums": ("gae",),
}
EVERY_OP = "tests/ops/test_every_op.py"


def tests_of(module: Path, functions: list[str]) -> list[list[str]]:
    """Return pytest arguments that test a module and its doctests, then arguments that test the `functions`."""
    arguments = [tests_of_module(module)]
    if module.parts[1] == "ops":
        folder = ".".join(module.with_suffix("").parts[2:])
        public = [f"{folder}.{name}" for name in functions if not name.startswith("_")]
        arguments += [[EVERY_OP, "-k", " or ".join(public)]] if public else []
    return arguments


def tests_of_module(module: Path) -> list[str]:
    """Return pytest arguments that test a module and its doctests."""
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
    files = [ALGORITHMS / f"test_{about}.py" for about in (module.stem, "losses_against_oracles", "defaults", "prepare")]
    return [*(str(file) for file in files if file.exists()), str(module), "-k", named]


def copy_checkout(work: Path, package: str) -> str:
    """Make a fresh copy of what the tests need, and return the hash of the code that is mutated."""
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
    """Return the program without annotations, type aliases, and / and * in signatures, or None if it does not parse."""
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
    """Return whether a mutant is a valid program that differs from the original."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    (mutation,) = item.mutations
    source = mutation.module_path.read_text(encoding="utf-8")
    mutated = mutate_code(source, get_operator(mutation.operator_name)(**mutation.operator_args), mutation.occurrence)
    return code_only(mutated) not in (None, code_only(source))


def select_sample(database, config, sample: int, seed: int) -> None:
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


def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports at run time; `from a import b` may mean `a` or `a.b`."""
    names: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
        waiting += ast.iter_child_nodes(node)
    return names


def warm_up(test_command: str) -> dict[str, set[str]]:
    """Import everything that the tests need; return, for each module of rljax, the modules that import it."""
    import pytest
    from jax._src import xla_bridge

    packages = "--co -qqq rljax/ops rljax/algorithms tests/mutation/run.py"
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = pytest.main(shlex.split(test_command.format(tests=packages))[1:])
    if status:
        raise SystemExit(f"the modules cannot be collected:\n{output.getvalue()}")
    tests = [path for folder in ("ops", "algorithms") for path in (Path("tests") / folder).rglob("test_*.py")]
    for name in sorted(set().union(*map(imports_of, tests))):
        if importlib.util.find_spec(name.rpartition(".")[0] or name) and not name.startswith("tests."):
            with contextlib.suppress(ModuleNotFoundError):  # a name in a module, not a module
                importlib.import_module(name)
    assert not xla_bridge.backends_are_initialized(), "a fork would not have the threads of the backend"
    needed = {
        name: imports_of(Path(module.__file__))
        for name, module in sys.modules.items()
        if name.split(".")[0] == "rljax" and module.__file__
    }
    dependents = {name: {other for other, names in needed.items() if name in names} for name in needed}
    for _ in needed:  # until nothing is added, because modules that import a dependent are dependents too
        extended = {name: found.union(*(dependents[other] for other in found)) for name, found in dependents.items()}
        if extended == dependents:
            break
        dependents = extended
    gc.collect()
    gc.freeze()
    return dependents


def forget(module: Path, dependents: dict[str, set[str]]) -> None:
    """Make Python reimport a module and all modules that import it."""
    from beartype._cache.cacheclear import clear_caches  # it caches classes by name, and reimported records are new classes

    clear_caches()
    name = ".".join(module.with_suffix("").parts)
    gone = {name} | dependents[name]
    for other in gone:
        parent, _, last = other.rpartition(".")
        if parent in sys.modules:
            vars(sys.modules[parent]).pop(last, None)
        del sys.modules[other]
    for other in [other for other in sys.modules if other.rpartition(".")[0] in gone]:  # submodules of a reimported package
        parent, _, last = other.rpartition(".")
        setattr(importlib.import_module(parent), last, sys.modules[other])


def run_forked(command: str, timeout: float, *, module: Path, dependents: dict[str, set[str]], faulty: bool):
    """Run tests like `cosmic_ray.testing.run_tests`, but in a fork, because reimporting everything would take most of the time."""
    import pytest
    from cosmic_ray.work_item import TestOutcome

    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(int(timeout))  # the signal ends the process
                os.dup2(output.fileno(), sys.stdout.fileno())
                os.dup2(output.fileno(), sys.stderr.fileno())
                sys.dont_write_bytecode = faulty
                forget(module, dependents)
                status = int(pytest.main(shlex.split(command)[1:]))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        passed = status == 0 or os.waitstatus_to_exitcode(status) == pytest.ExitCode.NO_TESTS_COLLECTED
        return TestOutcome.SURVIVED if passed else TestOutcome.KILLED, output.read().decode()


def cpu_of_children() -> float:
    """Return the CPU seconds of all forks that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def with_callers(module: Path, definition: str) -> list[str]:
    """Return a function of a module, followed by the module's functions that call it, directly or indirectly."""
    functions = {
        node.name: {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        for node in ast.parse(module.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    found = [definition]
    for name in found:  # `found` grows in the loop
        found += [caller for caller, names in functions.items() if name in names and caller not in found]
    return found


def execute(database, config, *, survivors: bool) -> None:
    """Test every mutant of the sample that has no result yet, and with `survivors` also those that survived."""
    from cosmic_ray import mutating
    from cosmic_ray.work_item import TestOutcome

    dependents = warm_up(config.test_command)

    def test(module: Path, arguments: list[str], *, faulty: bool):
        command = config.test_command.format(tests=shlex.join(arguments))
        return run_forked(command, config.timeout, module=module, dependents=dependents, faulty=faulty)

    survived = [item for item, result in database.completed_work_items if result.test_outcome == TestOutcome.SURVIVED]
    items = sorted([*database.pending_work_items, *(survived if survivors else ())], key=lambda item: repr(item.mutations))
    random.Random(0).shuffle(items)  # so that the mutants tested before an interruption are a random sample too
    verified: list[list[str]] = []
    for index, item in enumerate(items, 1):
        (mutation,) = item.mutations
        module = mutation.module_path
        functions = with_callers(module, mutation.definition_name or "")
        os.environ["FAULTY"] = " ".join(functions)
        written, began = module.stat(), cpu_of_children()
        for arguments in tests_of(module, functions):
            mutating.run_tests = lambda *_, module=module, arguments=arguments: test(module, arguments, faulty=True)
            result = mutating.mutate_and_test(item.mutations, "", config.timeout)
            # The file is the original again, so its old time stamp keeps the bytecode valid.
            os.utime(module, ns=(written.st_atime_ns, written.st_mtime_ns))
            if result.test_outcome != TestOutcome.SURVIVED:
                break
        seconds = cpu_of_children() - began
        if result.test_outcome != TestOutcome.SURVIVED and arguments not in verified:
            outcome, output = test(module, arguments, faulty=False)
            if outcome != TestOutcome.SURVIVED:
                raise SystemExit(f"the tests of {module} fail without any fault:\n{output}")
            verified.append(arguments)
        database.set_result(item.job_id, result)
        location = f"{module.stem}:{mutation.start_pos[0]} {mutation.operator_name.rpartition('/')[2]}"
        print(f"{index}/{len(items)} {location} {result.test_outcome.value} {seconds:.1f} s of CPU", flush=True)


def report(database) -> str:
    """Return the score of each module and the diff of every survivor, as Markdown."""
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
        location = f"{mutation.module_path.name}:{mutation.start_pos[0]} in `{mutation.definition_name}`"
        lines += ["", location, "", "```diff", result.diff, "```"]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", choices=("ops", "algorithms"), help="which folder of rljax is mutated")
    parser.add_argument("--work", type=Path, required=True, help="folder of the session: copy, results, report.md")
    parser.add_argument("--sample", type=int, default=300, help="mutants to test (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (%(default)s)")
    parser.add_argument("--survivors", action="store_true", help="test the survivors again, with the current tests")
    options = parser.parse_args()

    os.environ |= {"JAX_PLATFORMS": "cpu", "FAULTY": "."}
    from cosmic_ray.config import load_config
    from cosmic_ray.work_db import WorkDB, use_db

    work = options.work.resolve()
    description = f"sample {options.sample}, seed {options.seed}, code {copy_checkout(work, options.package)}"
    note = work / "drawn.txt"
    if note.exists() and note.read_text(encoding="utf-8") != description:
        raise SystemExit(
            f"{note} says {note.read_text(encoding='utf-8')}, this is {description}: choose a new --work folder"
        )
    os.chdir(work / "checkout")
    sys.path.insert(0, str(work / "checkout"))  # so that the copy is tested, not an installed rljax
    config = load_config(CONFIG)
    config["module-path"] = f"rljax/{options.package}"
    with use_db(work / "session.sqlite", WorkDB.Mode.create) as database:
        if not note.exists():
            select_sample(database, config, options.sample, options.seed)
            note.write_text(description, encoding="utf-8")
        try:
            execute(database, config, survivors=options.survivors)
        finally:  # an interrupted session writes a report too
            (work / "report.md").write_text(report(database), encoding="utf-8")
    print(work / "report.md")


if __name__ == "__main__":
    main()
