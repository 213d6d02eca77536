"""The compiled kernels equal the reference, and without a compiler the engine says so or goes on without them."""

import shutil

import pytest
import torch
from engine_world import TINY
from test_cpu_attention import LENGTHS, Paged

from core.errors import InputError
from engine.kernel_sets import kernels_for, name_of
from kernels import native_build, reference
from kernels.cpu_native import NativeKernels

CPU, BF16 = torch.device("cpu"), torch.bfloat16
ONE_ULP = 2**-7  # of bf16, of a value around 1

needs_compiler = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("cc")), reason="no C compiler here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("built")


@pytest.fixture(scope="module")
def native(folder):
    return NativeKernels(native_build.native_library(folder))


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(BF16)


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Rounded once more or less, each value."""
    ours, theirs = ours.double(), theirs.double()
    assert ((ours - theirs).abs() <= ONE_ULP * theirs.abs() + 1e-6).all()


@needs_compiler
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize(("head_dim", "num_kv_heads", "group", "block_size"), [(64, 3, 3, 16), (80, 1, 7, 3)])
def test_decodes_equal_the_reference_in_fp64(native, head_dim, num_kv_heads, group, block_size, window):
    """Ragged lengths over more than one chunk of scores, shuffled blocks, NaN in every slot that is not theirs."""
    paged = Paged(head_dim, num_kv_heads, group, block_size, BF16)
    rest = (paged.block_tables, paged.num_kv_tokens, paged.scale, window)
    query = paged.queries(len(LENGTHS))

    mixed = native.decode_attention(query, *paged.caches, *rest)

    exact = reference.decode_attention(query.double(), *(cache.double() for cache in paged.caches), *rest)
    assert (mixed - exact).abs().max() < 2 * ONE_ULP
    assert (mixed - exact).abs().mean() < 5e-4


@needs_compiler
@pytest.mark.parametrize("num_rows", [1, 40])
def test_norms_and_gate_equal_the_reference(native, num_rows):
    x, residual, weight, gate_up = randn(num_rows, 96), randn(96, num_rows).T, randn(96), 9 * randn(num_rows, 64)
    assert_close(native.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    normed, summed = native.add_rms_norm(x, residual, weight, 1e-5)
    assert summed.equal(x + residual)
    assert_close(normed, reference.rms_norm(summed, weight, 1e-5))
    assert_close(native.swiglu(gate_up), reference.swiglu(gate_up.double()))


@needs_compiler
@pytest.mark.parametrize("num_rows", [1, 40])
def test_rotation_and_cache_equal_the_reference(native, num_rows):
    qkv, angles = randn(num_rows, 5 * 32), torch.arange(num_rows * 16.0).view(num_rows, 16)
    slots = torch.randperm(64)[:num_rows]
    queries, caches = [], torch.zeros(2, 2, 16, 4, 2, 32, dtype=BF16)
    for kernels, cache in zip((native, reference), caches, strict=True):
        queries.append(kernels.rope_kv_write(qkv, angles.cos(), angles.sin(), *cache, slots))
    assert_close(*queries)
    assert_close(*caches[:, 0])
    assert caches[0, 1].equal(caches[1, 1])  # values are copied


@needs_compiler
def test_a_gate_far_from_zero_stays_finite(native):
    gate = torch.tensor([-1e4, -100, -90, 0, 90, 100, 1e4, torch.inf, torch.nan] + 7 * [1.0]).to(BF16)

    gated = native.swiglu(torch.cat([gate, torch.ones_like(gate)])[None])[0]

    assert gated[:3].abs().max() < 1e-20
    assert gated[3:8].tolist() == gate[3:8].tolist()
    assert gated[8].isnan()


@needs_compiler
def test_what_it_does_not_serve_is_left_to_torch(native):
    """fp32, and widths that are no multiple of 16, are the reference's results bit for bit."""
    for x in (torch.randn(3, 32), randn(3, 20)):
        weight = torch.ones(x.shape[1], dtype=x.dtype)
        assert native.rms_norm(x, weight, 1e-5).equal(reference.rms_norm(x, weight, 1e-5))
        assert native.swiglu(x).equal(reference.swiglu(x))


@needs_compiler
def test_a_library_is_built_once(folder, native, monkeypatch):
    monkeypatch.setattr(native_build, "_build", lambda path: pytest.fail("built twice"))

    again = native_build.native_library.__wrapped__(folder)

    assert [str(path) for path in folder.iterdir()] == [again._name]


def test_without_a_compiler_auto_goes_on_and_native_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("KVTWIN_CACHE", str(tmp_path / "no compiler"))
    monkeypatch.setattr(native_build.shutil, "which", lambda name: None)

    assert name_of(kernels_for("auto", TINY, CPU, BF16)) == "cpu"
    with pytest.raises(InputError, match=r"engine.kernels=native: no C compiler found \(CC, gcc, cc\); expected cpu"):
        kernels_for("native", TINY, CPU, BF16)
    with pytest.raises(InputError, match=r"engine.kernels=native: the model runs on cuda; expected reference"):
        kernels_for("native", TINY, torch.device("cuda"), BF16)


def test_a_compiler_that_fails_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("KVTWIN_CACHE", str(tmp_path))
    monkeypatch.setattr(native_build.shutil, "which", lambda name: "false")

    with pytest.raises(InputError, match=r"engine.kernels=native: false does not compile it: it gives no reason"):
        kernels_for("native", TINY, CPU, BF16)
    assert list(tmp_path.iterdir()) == []
