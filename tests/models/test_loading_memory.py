"""Host memory needed to read a model folder of several files, measured in a separate process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from rljax.models import TransformerConfig, abstract_params
from rljax.models.huggingface import model_contents
from rljax.models.model_folder import write_model

CONFIG = TransformerConfig(vocab_size=64, width=512, layers=16, heads=8, kv_heads=8, head_dim=64, hidden=1536)
"""218 MB; no tensor is larger than 3.2 MB."""
SHARD = 100 * 10**6
PROGRAM = """
import json, re, sys
from pathlib import Path
import jax
from safetensors.numpy import load_file
from rljax.models import abstract_params
from rljax.models.huggingface import load_params, read_config

def memory(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

folder = Path(sys.argv[1])
config = read_config(folder)
jax.block_until_ready(jax.numpy.zeros(8))
abstract_params(config)
before = memory("VmRSS")
load_params(folder, config, convert=lambda path, parameter: None)
peak_if_discarded = memory("VmHWM") - before
params = load_params(folder, config)
jax.block_until_ready(params)
peak_if_kept = memory("VmHWM") - before
tensors = [load_file(file) for file in sorted(folder.glob("*.safetensors"))]
print(json.dumps({"discarded": peak_if_discarded, "kept": peak_if_kept, "both": memory("VmHWM") - before}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_loading_shards_needs_extra_memory_for_about_one_shard(tmp_path):
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), abstract_params(CONFIG))
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    write_model(tmp_path, model_contents(CONFIG, params, bos=None, eos=1), max_shard_bytes=SHARD)
    assert len(list(tmp_path.glob("*.safetensors"))) > total // SHARD
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    peak = json.loads(shown)
    assert peak["discarded"] < 1.5 * SHARD < total, "reading must hold only one file's pages and one tensor at a time"
    assert peak["kept"] < total + 1.5 * SHARD
    assert peak["both"] > 2 * total - SHARD, "the measurement must include arrays that are kept"
