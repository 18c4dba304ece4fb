"""Strict JAX for every test: signatures are checked, type or rank promotion is an error, and the CPU acts as eight devices."""

import ctypes
import gc
import os
import sys
import threading
from importlib.metadata import version
from pathlib import Path

# Set in the environment, not in jax.config, so that commands and notebooks started by tests inherit it.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"  # compilation takes most of the suite's time
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
if version("jaxlib").startswith("0.10."):  # compiles twice as fast; other versions may abort on an unknown flag
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

import hypothesis
import jax
import jaxtyping
import pytest

CONTEXTS = threading.local()
"""Thread-local storage: the attribute `one` is the MLIR context shared by all lowerings in a thread."""
if version("jax").startswith("0.10."):
    from jax._src.interpreters import mlir

    make_context = mlir.make_ir_context

    def context_of_thread():
        """Reuse one context: JAX makes one per lowering, which takes a fifth of a small program's compilation time."""
        if not hasattr(CONTEXTS, "one"):
            CONTEXTS.one = make_context()
        return CONTEXTS.one

    mlir.make_ir_context = context_of_thread

# Tracing makes many objects but little garbage, and collecting it took a tenth of the suite's time.
gc.set_threshold(50_000)
MEMORY_LIMIT = 3 << 30
"""Bytes; a process that uses more after a test module drops its compiled programs."""
ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
hypothesis.settings.register_profile("rljax", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("rljax")
UNCHECKED = {"__init__", "__main__", "__pycache__", "py.typed"}
CHECKED = sorted({path.stem for path in (ROOT / "rljax").iterdir() if path.name not in UNCHECKED} - UNCHECKED)
"""The packages and modules of rljax whose signatures are checked: all but `rljax/__init__.py`, which only lists names."""
jaxtyping.install_import_hook([f"rljax.{name}" for name in CHECKED], "type_checker.check")

from rljax.cli.compilation_cache import FOLDER_VARIABLE, MIN_SECONDS_VARIABLE, keep_compiled_programs  # noqa: E402  after the hook

os.environ.setdefault(MIN_SECONDS_VARIABLE, "0.01")
keep_compiled_programs(os.environ)  # in the user's cache folder, so that the next run of the suite compiles little
jax.config.update("jax_compilation_cache_dir", os.environ.get(FOLDER_VARIABLE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", float(os.environ[MIN_SECONDS_VARIABLE]))


def pytest_collection_finish():
    """Turn off the plots of training runs, and exclude everything imported so far from garbage collection."""
    if "rljax.training" in sys.modules:
        from skip_plots import skip_curves

        skip_curves()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    """Drop compiled programs when a process uses too much memory; the cache on disk still has them."""
    yield
    if resident_bytes() > MEMORY_LIMIT:
        jax.clear_caches()
        vars(CONTEXTS).clear()
        gc.collect()
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):  # otherwise glibc keeps freed memory
            libc.malloc_trim(0)


def resident_bytes() -> int:
    """Memory of this process; 0 on systems without Linux's /proc."""
    sizes = Path("/proc/self/statm")
    return int(sizes.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if sizes.exists() else 0


@pytest.fixture
def without_type_checks():
    """Switch the signature checker off, so that the functions' own errors can be tested."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def standard_promotion():
    """JAX's standard promotion, for modules that call Optax directly: Optax raises a decay rate to an integer power."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def x64():
    """Compute in float64 for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data and weights that the developers test with; users do not have it."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data folder {SHARED_DATA} is not on this machine")
    return SHARED_DATA
