"""Preference losses, checked against TRL's in float64 on the same inputs (see `make_trl_preferences.py`).

`logp`, `ref_logp` and `lengths` belong to 12 pairs, with the preferred responses first; `other` and `ref_other` to 24 mismatched
responses for KTO's reference point. If TRL's convention differs from ours, the test's docstring describes the difference.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops import direct_preference, reference_free

pytestmark = pytest.mark.usefixtures("x64")
TRL = json.loads(Path(__file__).with_name("trl_preferences.json").read_text())
LOGP, REF_LOGP, LENGTHS, OTHER, REF_OTHER = (
    np.array(TRL["inputs"][name]) for name in ("logp", "ref_logp", "lengths", "other", "ref_other")
)
TRL_OUTPUTS = TRL["outputs"]


def assert_matches_trl(name, losses):
    """Compare losses as a function of the summed log-probabilities, and the gradient of their sum."""
    with_losses = jax.value_and_grad(lambda logp: (losses(logp).sum(), losses(logp)), has_aux=True)
    (_, loss), gradient = with_losses(jnp.array(LOGP))
    np.testing.assert_allclose(loss, TRL_OUTPUTS[name]["loss"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(gradient, TRL_OUTPUTS[name]["gradient"], rtol=1e-10, atol=1e-12)


def test_dpo_loss():
    assert_matches_trl(
        "dpo", lambda logp: direct_preference.dpo_loss(*logp, *jnp.array(REF_LOGP), beta=TRL_OUTPUTS["dpo"]["beta"])
    )


def test_ipo_loss():
    """TRL averages the policy's and the reference's log-probabilities over the tokens. TRL's β is our τ."""

    def losses(logp):
        both = *(logp / jnp.array(LENGTHS)), *jnp.array(REF_LOGP / LENGTHS)
        return direct_preference.ipo_loss(*both, tau=TRL_OUTPUTS["ipo"]["beta"])

    assert_matches_trl("ipo", losses)


def test_kto_loss():
    settings = TRL_OUTPUTS["kto"]
    point = direct_preference.kto_reference_point(jnp.array(OTHER), jnp.array(REF_OTHER))
    np.testing.assert_allclose(point, settings["reference_point"], rtol=1e-12)
    assert settings["reference_point"] > 0
    good, bad = settings["weights"]

    def losses(logp):
        desirable = jnp.stack([jnp.ones(12, bool), jnp.zeros(12, bool)])
        options = {"beta": settings["beta"], "desirable_weight": good, "undesirable_weight": bad}
        return direct_preference.kto_loss(logp, jnp.array(REF_LOGP), desirable, reference_point=point, **options)

    assert_matches_trl("kto", losses)


def test_simpo_loss():
    """TRL divides γ by β and later multiplies the result by β."""
    settings = {"beta": TRL_OUTPUTS["simpo"]["beta"], "margin": TRL_OUTPUTS["simpo"]["margin"]}
    assert_matches_trl("simpo", lambda logp: reference_free.simpo_loss(*(logp / jnp.array(LENGTHS)), **settings))


def test_orpo_loss():
    """TRL's β is our λ. TRL computes the likelihood term elsewhere, as a mean over prompt and response; the test removes ours."""

    def losses(logp):
        mean = logp / jnp.array(LENGTHS)
        return reference_free.orpo_loss(*mean, coefficient=TRL_OUTPUTS["orpo"]["beta"]) + mean[0]

    assert_matches_trl("orpo", losses)
