"""Bytes that devices send in collectives: a compiled program against a hand count, and every syntax of an HLO line."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rljax.parallel import make_mesh
from rljax.parallel.collectives import Collective, collectives

WIDTH, ROWS, LAYERS = 64, 32, 5


def test_bytes_of_a_loop_with_a_sharded_matrix():
    """A [64, 64] matrix over fsdp=4, rows over 8 devices: each pass gathers the matrix, each of five layers sums its gradient."""
    mesh = make_mesh(2, 4)

    def sharding(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    def gradient(matrix, rows):
        def loss(matrix):
            def layer(rows, _):
                return jax.lax.with_sharding_constraint(jnp.tanh(rows @ matrix), sharding(("data", "fsdp"))), None

            return jax.lax.scan(layer, rows, None, length=LAYERS)[0].sum()

        return jax.grad(loss)(matrix)

    matrix = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=sharding("fsdp"))
    rows = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=sharding(("data", "fsdp")))
    program = jax.jit(gradient, out_shardings=sharding("fsdp")).lower(matrix, rows).compile()
    found = collectives(program.as_text())
    gathers = [each for each in found if each.kind == "all-gather"]
    matrix_bytes = 4 * WIDTH * WIDTH
    assert {(each.size, each.devices) for each in gathers} == {(matrix_bytes, 4)}
    sums = [each for each in found if each.kind in ("all-reduce", "reduce-scatter")]
    assert {each.times for each in sums} == {LAYERS}
    received = sum(each.size * (each.devices if each.kind == "reduce-scatter" else 1) for each in sums)
    assert received in (matrix_bytes, matrix_bytes + matrix_bytes // 4), (
        "summed over all eight devices, or over fsdp and then each shard over data"
    )
    assert sum(each.sent for each in gathers) == sum(each.times for each in gathers) * matrix_bytes * 3 / 4


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "%all-gather.1 = bf16[8,16]{1,0} all-gather(%x), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}",
            Collective("all-gather", 256, 8, 1),
        ),
        (
            "ROOT %r = (f32[8]{0}, f32[]) all-reduce(%x, %y), replica_groups={{0,2},{1,3}}, to_apply=%add",
            Collective("all-reduce", 36, 2, 1),
        ),
        (
            "%s = f32[4]{0} reduce-scatter(%x), replica_groups=mesh['axis_0'=1,'axis_1'=4,'axis_2'=2], "
            "device_ids=([2,4]T(1,0)) {'axis_1', 'axis_2'}, dimensions={0}, to_apply=%add",
            Collective("reduce-scatter", 16, 8, 1),
        ),
        (
            "%t = f32[8]{0} all-to-all(%x), replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0':(2)2}, dimensions={0}",
            Collective("all-to-all", 32, 2, 1),
        ),
        (
            "%g = (s32[2]{0}, s32[8]{0}) all-gather-start(%x), replica_groups=[2,4]<=[8], dimensions={0}",
            Collective("all-gather", 32, 4, 1),
        ),
        (
            "%p = pred[8]{0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}",
            Collective("collective-permute", 8, 2, 1),
        ),
        (
            "%r = (c128[2]{0}, f8e4m3[8]{0}, f8e8m0fnu[4]{0}, token[]) all-reduce(%x), replica_groups={{0,1}}, to_apply=%add",
            Collective("all-reduce", 44, 2, 1),
        ),
        ("%a = f32[4]{0} all-reduce(%x), replica_groups={{0},{1}}, to_apply=%add", None),
        ("%a = f32[4]{0} add(%all-reduce.1, %y)", None),
    ],
)
def test_every_group_syntax_is_parsed(line, expected):
    text = f"%add (x: f32[], y: f32[]) -> f32[] {{\n}}\n\nENTRY %main (x: f32[8]) -> f32[8] {{\n  {line}\n}}\n"
    assert collectives(text) == ([] if expected is None else [expected])


def test_nested_loops_and_conditional_branches():
    reduce = "all-reduce(%x), replica_groups=[1,4]<=[4], to_apply=%add"
    text = f"""
%inner (x: f32[2]) -> f32[2] {{
  %a = f32[2]{{0}} {reduce}
}}
%outer (x: f32[2]) -> f32[2] {{
  %w = f32[2]{{0}} while(%x), condition=%less, body=%inner, backend_config={{"known_trip_count":{{"n":"3"}}}}
}}
%left (x: f32[2]) -> f32[2] {{
  %a = f32[4]{{0}} {reduce}
}}
%less (x: f32[2]) -> pred[] {{
}}
%add (x: f32[], y: f32[]) -> f32[] {{
}}
ENTRY %main (x: f32[2]) -> f32[2] {{
  %w = f32[2]{{0}} while(%x), condition=%less, body=%outer, backend_config={{"known_trip_count":{{"n":"7"}}}}
  %c = f32[4]{{0}} conditional(%i, %x, %x), branch_computations={{%left, %inner}}
}}
"""
    assert sorted((each.size, each.times) for each in collectives(text)) == [(8, 22), (16, 1)]


def test_trip_count_of_a_tpu_loop():
    text = """
%body (p: (s32[], f32[2])) -> (s32[], f32[2]) {
  %a = f32[2]{0} all-reduce(%x), channel_id=4, replica_groups=[1,4]<=[4], to_apply=%add
}
%condition (p: (s32[], f32[2])) -> pred[] {
  %other = s32[]{:T(128)} constant(99)
  %bound = s32[]{:T(128)} constant(12)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %bound), direction=LT
}
%add (x: f32[], y: f32[]) -> f32[] {
}
ENTRY %main (x: f32[2]) -> f32[2] {
  %w = (s32[], f32[2]{0}) while(%t), condition=%condition, body=%body
}
"""
    assert [(each.size, each.times) for each in collectives(text)] == [(8, 12)]


def test_split_operations_count_once():
    text = """
%first (p: bf16[1,8]) -> bf16[4,8] {
  %g.1 = bf16[4,8]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=7, replica_groups=mesh['axis_0'=4] {'axis_0'}, dimensions={0}
}
%last (p: bf16[1,8]) -> bf16[4,8] {
  %g.2 = bf16[4,8]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=7, replica_groups=mesh['axis_0'=4] {'axis_0'}, dimensions={0}
}
ENTRY %main (x: bf16[1,8]) -> bf16[4,8] {
  %a = bf16[4,8]{1,0} fusion(%x), kind=kCustom, calls=%first
  %b = bf16[4,8]{1,0} fusion(%a), kind=kCustom, calls=%last
  %s = (bf16[8]{0}, bf16[8]{0}, u32[]{:S(2)}, u32[]) collective-permute-start(%x), channel_id=9, source_target_pairs={{0,1}}
}
"""
    assert sorted((each.kind, each.size) for each in collectives(text)) == [("all-gather", 64), ("collective-permute", 16)]


def test_unknown_group_syntax_is_refused():
    text = "ENTRY %main (x: f32[8]) -> f32[8] {\n  %a = f32[4]{0} all-reduce(%x), replica_groups=everyone\n}\n"
    with pytest.raises(ValueError, match="the groups of this operation cannot be read: %a = f32"):
        collectives(text)
