# A researcher who wants the equations: find them, read them, use them alone, and change an algorithm in one slot.
rljax equations what bounds the ratio? | tee found.txt
grep -q "clipped" found.txt
rljax equations --bibtex | grep -q "@"
rljax algorithms dapo
rljax errata | tail -1

python - <<'EOF'
import jax
import jax.numpy as jnp
import rljax

rewards = jnp.array([[1.0, 0.0, 0.0, 0.0]])
advantage = rljax.ops.group.group_normalized(rewards)
mask = jnp.ones((1, 4, 3), bool)
old_logp = jnp.full((1, 4, 3), -1.0)


def loss(logp):
    ratio = rljax.ops.ratio.token_log_ratio(logp, old_logp, mask)
    surrogate = rljax.ops.surrogate.clipped(ratio, jnp.broadcast_to(advantage[..., None], mask.shape), low=0.2, high=0.28)
    return -(rljax.ops.weights.token_mean(mask) * surrogate).sum()


gradient = jax.grad(loss)(old_logp)
assert gradient[0, 0, 0] < 0 < gradient[0, 1, 0], "the right response becomes likelier"

algorithm = rljax.algorithms.dapo(clip_high=0.3)
variant = algorithm._replace(keep_group=None)
assert variant.surrogate is algorithm.surrogate
EOF
