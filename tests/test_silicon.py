"""The silicon check without a GPU: layouts, kernels, the flow on a stand-in, the document."""

import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from stand_in_gpu import Gpu

from mpcore.errors import InputError
from mpcore.matmul import mma, units
from mpcore.matmul.instructions import INSTRUCTIONS, TABLE, get_instruction, key_of
from mpcore.matmul.silicon import __main__ as command
from mpcore.matmul.silicon import driver, marks
from mpcore.matmul.silicon.cases import CLASSES, generated, packed, unpacked, vectors_of
from mpcore.matmul.silicon.check import (
    DIFFERENT,
    EQUAL,
    FAILED,
    NOT_REPLAYED,
    Outcome,
    expected,
    instructions_of,
    replay,
)
from mpcore.matmul.silicon.ptx import CAPABILITIES, descriptor, kernel_of, why_not
from mpcore.matmul.units import AlignedSum

VECTORS = dict(np.load(marks.VECTORS))
OLDEST = {arch: c for c, arch in reversed(CAPABILITIES.items())}
REPLAYED = [i for i in TABLE if why_not(i) is None]


def kernel(arch, kind, qualifier):
    return kernel_of(next(i for i in TABLE if str(i) == f"{arch} {kind} {qualifier}"), OLDEST[arch])


# ---- layouts


@pytest.mark.parametrize("arch", OLDEST)
def test_every_element_has_exactly_one_place(arch):
    for i in (i for i in REPLAYED if i.arch == arch):
        found = kernel_of(i, OLDEST[arch])
        for name, fragment in found.fragments.items():
            places = np.sort(fragment.index.ravel())
            if name in ("SA", "SB"):  # lanes and bytes that no scale needs repeat one
                places = np.unique(places)
            assert np.array_equal(places, np.arange(np.prod(fragment.shape))), (i, name)
            assert fragment.index.shape[0] <= found.threads


@pytest.mark.parametrize("arch", OLDEST)
def test_what_is_packed_comes_back(arch):
    rng = np.random.default_rng(0)
    for i in (i for i in REPLAYED if i.arch == arch):
        for fragment in kernel_of(i, OLDEST[arch]).fragments.values():
            top = 2**fragment.bits
            codes = rng.integers(0, top, (3, *fragment.shape), fragment.code_dtype)
            words = fragment.pack(codes)
            assert words.shape == (3, *fragment.index.shape[:2])
            assert np.array_equal(fragment.unpack(words), codes)


# What the PTX ISA prints for each fragment, as it prints it: `i` counts the elements of a thread.
# Row and column of element i, from the lane, its group (lane >> 2) and its thread in group
# (lane % 4); "Matrix fragments for mma.m16n8k16 with floating point type" and its neighbours.
PUBLISHED = [
    (
        "Ampere mma m16n8k16.f32.f16.f16.f32",
        {
            "A": lambda t, g, q, i: (
                g if 0 <= i < 2 or 4 <= i < 6 else g + 8,
                q * 2 + (i & 1) if i < 4 else q * 2 + (i & 1) + 8,
            ),
            "B": lambda t, g, q, i: (q * 2 + (i & 1) if i < 2 else q * 2 + (i & 1) + 8, g),
            "C": lambda t, g, q, i: (g if i < 2 else g + 8, q * 2 + (i & 1)),
        },
    ),
    (
        "Turing mma m16n8k8.f16.f16.f16.f16",
        {
            "A": lambda t, g, q, i: (g if i < 2 else g + 8, q * 2 + (i & 1)),
            "B": lambda t, g, q, i: (q * 2 + i, g),
            "D": lambda t, g, q, i: (g if i < 2 else g + 8, q * 2 + (i & 1)),
        },
    ),
    (
        "Ampere mma m16n8k8.f32.tf32.tf32.f32",
        {
            "A": lambda t, g, q, i: (g if i in (0, 2) else g + 8, q if i in (0, 1) else q + 4),
            "B": lambda t, g, q, i: (q if i == 0 else q + 4, g),
        },
    ),
    (
        "Ampere mma m16n8k4.f32.tf32.tf32.f32",
        {
            "A": lambda t, g, q, i: (g if i == 0 else g + 8, q),
            "B": lambda t, g, q, i: (q, g),
        },
    ),
    (
        "Ada Lovelace mma m16n8k32.f32.e4m3.e5m2.f32",
        {
            "A": lambda t, g, q, i: (
                g if 0 <= i < 4 or 8 <= i < 12 else g + 8,
                q * 4 + (i & 3) if i < 8 else q * 4 + (i & 3) + 16,
            ),
            "B": lambda t, g, q, i: (q * 4 + (i & 3) if i < 4 else q * 4 + (i & 3) + 16, g),
        },
    ),
    (
        "RTX Blackwell mma m16n8k16.f32.e4m3.e4m3.f32",
        {
            "A": lambda t, g, q, i: (g if i < 4 else g + 8, q * 4 + (i & 3)),
            "B": lambda t, g, q, i: (q * 4 + i, g),
        },
    ),
    (
        "RTX Blackwell mma_block_scale m16n8k64.block32.f32.e2m1.e2m1.f32.ue8m0",
        {
            "A": lambda t, g, q, i: (
                g if 0 <= i < 8 or 16 <= i < 24 else g + 8,
                q * 8 + (i & 7) if i < 16 else q * 8 + (i & 7) + 32,
            ),
            "B": lambda t, g, q, i: (q * 8 + (i & 7) if i < 8 else q * 8 + (i & 7) + 32, g),
        },
    ),
    (
        "Hopper mma m8n8k4.f64.f64.f64.f64",
        {
            "A": lambda t, g, q, i: (g, q),
            "B": lambda t, g, q, i: (q, g),
            "C": lambda t, g, q, i: (g, q * 2 + (i & 1)),
        },
    ),
    (
        "Hopper mma m16n8k16.f64.f64.f64.f64",
        {
            "A": lambda t, g, q, i: (g if i % 2 == 0 else g + 8, i * 2 - (i % 2) * 2 + q),
            "B": lambda t, g, q, i: (q + i * 4, g),
            "D": lambda t, g, q, i: (g if i < 2 else g + 8, q * 2 + (i & 1)),
        },
    ),
    (
        "Volta mma m8n8k4.f32.f16.f16.f32",
        {
            "A": lambda t, g, q, i: (t % 4 if t < 16 else t % 4 + 4, i),
            "B": lambda t, g, q, i: (i, t % 4 if t < 16 else t % 4 + 4),
            "C": lambda t, g, q, i: (
                (t & 0b1) + (i & 0b10) + (0 if t < 16 else 4),
                (i & 0b100) + (t & 0b10) + (i & 0b1),
            ),
        },
    ),
    (
        "Volta mma m8n8k4.f16.f16.f16.f16",
        {"C": lambda t, g, q, i: (t % 4 if t < 16 else t % 4 + 4, i)},
    ),
    (
        "Hopper wgmma m64n8k16.f32.f16.f16",
        {
            "D": lambda t, g, q, i: (
                16 * (t // 32) + (g % 8 if i % 4 < 2 else g % 8 + 8),
                8 * (i // 4) + q * 2 + (i & 1),
            )
        },
    ),
]


@pytest.mark.parametrize(("name", "operands"), PUBLISHED, ids=[name for name, _ in PUBLISHED])
def test_fragments_lie_where_the_ptx_isa_says(name, operands):
    i = next(i for i in TABLE if str(i) == name)
    for operand, place in operands.items():
        fragment = kernel_of(i, OLDEST[i.arch]).fragments[operand]
        copies, rows, columns = fragment.shape
        of_thread = fragment.index.reshape(len(fragment.index), -1)
        for thread, elements in enumerate(of_thread):
            copy = thread % 16 // 4 if copies > 1 else 0
            for item, element in enumerate(elements):
                row, column = place(thread, thread >> 2, thread % 4, item)
                assert element == (copy * rows + row) * columns + column, (operand, thread, item)


def test_scales_lie_in_the_first_lanes_of_a_group_one_byte_for_a_block():
    found = kernel("RTX Blackwell", "mma_block_scale", "m16n8k64.block16.f32.e2m1.e2m1.f32.ue4m3")
    sa, sb = found.fragments["SA"].index[:, 0], found.fragments["SB"].index[:, 0]
    for row in range(16):
        lane = 4 * (row % 8) + row // 8
        assert list(sa[lane]) == [row * 4 + block for block in range(4)]
    for column in range(8):
        assert list(sb[4 * column]) == [block * 8 + column for block in range(4)]


@pytest.mark.parametrize("i", [i for i in TABLE if i.kind == "wgmma"], ids=str)
def test_wgmma_finds_its_operands_by_their_descriptors(i):
    """As the PTX ISA has K-major matrices without swizzling: strides of 8 rows and 16 bytes."""
    fragments, size = kernel_of(i, (9, 0)).fragments, 256 // i.k  # bits of an element
    for name, start in (("A", 0), ("B", 2048)):
        fragment, about = fragments[name], descriptor(start)
        codes = np.arange(np.prod(fragment.shape), dtype=np.uint64).reshape(1, *fragment.shape)
        codes = (codes % 2**size).astype(fragment.code_dtype)
        memory = fragment.pack(codes).tobytes()
        assert about >> 62 == 0 and about >> 49 & 7 == 0
        assert (about & 0x3FFF) << 4 == start
        leading, stride = (about >> 16 & 0x3FFF) << 4, (about >> 32 & 0x3FFF) << 4
        by_row = codes[0, 0] if name == "A" else codes[0, 0].T
        for line, row in enumerate(by_row):
            for k, code in enumerate(row):
                chunk, within = divmod(k * size // 8, 16)
                where = line // 8 * stride + chunk * leading + line % 8 * 16 + within
                assert int.from_bytes(memory[where : where + size // 8], "little") == code


# ---- kernels


def find_ptxas():
    """On the PATH, or in NVIDIA's wheels."""
    wheels = (p for folder in sys.path for p in Path(folder).glob("nvidia/*/bin/ptxas"))
    return shutil.which("ptxas") or next(map(str, wheels), None)


def test_every_kernel_assembles_where_ptxas_is_at_hand(tmp_path):
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("no ptxas on the PATH or in NVIDIA's wheels: kernels not assembled")
    assert command.main(["--ptx", str(tmp_path)]) == 0
    files, wrong, assembled = sorted(tmp_path.iterdir()), {}, 0
    assert len(files) == sum(
        why_not(i) is None for capability in CAPABILITIES for i in instructions_of(capability)
    )
    for file in files:
        target = file.name.partition(".")[0]
        asked = [ptxas, "-arch", target, str(file), "-o", str(tmp_path / "out")]
        said = subprocess.run(asked, capture_output=True, text=True)
        text = said.stderr + said.stdout
        if "is not defined for option" in text or "Unsupported .version" in text:
            continue  # a target that this ptxas is too new for, or too old
        assembled += 1
        if said.returncode or text.strip():
            wrong[file.name] = text
    assert assembled and wrong == {}


def test_what_is_replayed_and_what_is_not():
    assert len(TABLE) == 179 and len(REPLAYED) == 107
    without = Counter(i.kind for i in TABLE if why_not(i))
    assert without == {
        "mfma": 50, "tcgen05mma": 14, "tcgen05mma_block_scale": 7, "mma_block_scale": 1
    }  # fmt: skip


# ---- the whole flow, on a stand-in for the device


@pytest.mark.parametrize("capability", OLDEST.values(), ids=lambda c: f"{c[0]}.{c[1]}")
def test_a_gpu_that_computes_as_the_reference_model_is_equal(capability):
    gpu = Gpu(capability)
    for i in instructions_of(capability):
        outcome = replay(i, gpu, cases=100, vectors=VECTORS)
        assert outcome.status == (NOT_REPLAYED if why_not(i) else EQUAL), outcome
        assert why_not(i) or outcome.cases > 1000
    assert gpu.library.memory == {}


def with_unit(i, unit):
    """An arithmetic for the stand-in: `mma` with another unit for one instruction."""

    def compute(given, operands):
        key = key_of(i.arch, i.kind, i.qualifier)
        with patch.dict(INSTRUCTIONS, {key: replace(INSTRUCTIONS[key], unit=unit)}):
            return expected(given, operands)

    return compute


KINDS_OF_SUMS = {(i.unit, i.d): i for i in REPLAYED if not i.unit.is_ieee}


@pytest.mark.parametrize("i", KINDS_OF_SUMS.values(), ids=str)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_gpu_that_keeps_one_bit_more_or_less_is_found_out(i, change):
    wrong = replace(i.unit, fraction=i.unit.fraction + change)
    gpu = Gpu(OLDEST[i.arch], compute=with_unit(i, wrong))
    outcome = replay(i, gpu, cases=1500)
    assert outcome.status == DIFFERENT and outcome.different > 0


@pytest.mark.parametrize("name", ["fp16", "bf16", "tf32", "fp8_e4m3"])
def test_a_gpu_that_gives_zero_another_exponent_is_found_out(name, monkeypatch):
    """The reference model's is -126 in every format, which no silicon has confirmed."""
    i = next(i for i in REPLAYED if (i.arch, i.kind, i.a.name) == ("Hopper", "wgmma", name))

    def compute(given, operands):
        with monkeypatch.context() as patched:
            patched.setattr(units, "ZERO_EXPONENT", -2000)
            return expected(given, operands)

    outcome = replay(i, Gpu((9, 0), compute=compute), cases=1000)
    assert outcome.status == DIFFERENT


def test_the_first_difference_is_told_in_full_and_can_be_computed_anew():
    i = get_instruction("Hopper", "wgmma", "m64n8k32.f32.e4m3.e4m3")
    gpu = Gpu((9, 0), compute=with_unit(i, AlignedSum(32, 14, "e8m13")))
    outcome = replay(i, gpu, cases=1000)
    where, told = outcome.first.split(": A ")
    parts = told.split(", ")
    assert where.startswith("class ")
    a, b = ([int(x, 16) for x in part.split()] for part in (parts[0], parts[1].removeprefix("B ")))
    c, ours, silicon = (int(part.split()[1], 16) for part in parts[2:])
    a, b = np.array([a], np.uint8), np.array([b], np.uint8).T
    d = mma(a, b, np.array([[c]], np.uint32), arch=i.arch, kind=i.kind, qualifier=i.qualifier)
    assert int(d[0, 0]) == ours != silicon


def test_a_replay_that_mixes_up_elements_is_no_evidence_about_arithmetic():
    i = get_instruction("Ampere", "mma", "m16n8k16.f32.f16.f16.f32")
    gpu = Gpu((8, 0), compute=lambda i, operands: expected(i, operands)[:, ::-1])
    outcome = replay(i, gpu, cases=100)
    assert outcome.status == FAILED and "the replay is at fault" in outcome.first
    assert marks.result_of(outcome, gpu, "2026-01-01", 0) is None


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ("compile", "no kernel image (PTX 7.0 for sm_80): ptxas fatal : Unsupported .version"),
        ("fault", "cuStreamQuery: illegal instruction"),
        ("hang", "the kernel did not end within 0.01 s"),
    ],
)
def test_a_kernel_that_fails_is_told_in_one_line_and_the_next_is_tried(failing, said, capsys):
    gpu = Gpu((8, 0), failing=failing)
    status = command.main(["--timeout", "0.01", "--cases", "1"], find=lambda number: gpu)
    lines = capsys.readouterr().out.splitlines()
    assert said in lines[1] and len(lines) == 1 + 9 + 1
    assert lines[-1] == "9 instructions: 0 equal, 0 different, 9 failed, 0 not replayed"
    assert status == (failing == "hang")
    if failing == "hang":
        assert "not run: an earlier kernel did not end" in lines[2]


def nothing(number):
    raise driver.NoDevice("no NVIDIA driver: libcuda.so.1 cannot be loaded")


def test_without_a_gpu_one_line_says_so(capsys):
    assert command.main([], find=nothing) == 0
    said = capsys.readouterr().out
    assert said.startswith("No CUDA device: silicon check skipped (no NVIDIA") and len(said) < 120
    assert said.count("\n") == 1


@pytest.mark.parametrize(("is_amd", "said"), [(True, "MFMA"), (False, "no NVIDIA driver")])
def test_what_is_there_instead_of_a_gpu_of_nvidia_is_told(is_amd, said, monkeypatch):
    monkeypatch.setattr(driver, "_LIBRARY", "no such library")
    monkeypatch.setattr(Path, "exists", lambda path: is_amd)
    with pytest.raises(driver.NoDevice, match=said):
        driver.find_device()


def test_a_gpu_that_the_table_does_not_have_is_told_in_one_line(capsys):
    assert command.main([], find=lambda number: Gpu((6, 1), "Old GPU")) == 0
    said = capsys.readouterr().out
    assert said.startswith("Silicon check skipped: Old GPU has compute capability 6.1; the table")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cases", "0"], "--cases is 0; 1 or more is needed"),
        (["--only", "wgmma"], "no instruction of Ampere mma is called so"),
    ],
)
def test_bad_input_is_told_in_one_line(arguments, said, capsys):
    assert command.main(arguments, find=lambda number: Gpu((8, 0))) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


# ---- operands


@pytest.mark.parametrize("label", CLASSES)
def test_cases_come_again_with_their_seed_and_are_many_codes(label):
    i = get_instruction("Hopper", "wgmma", "m64n8k32.f16.e4m3.e5m2")
    first, again, other = (generated(i, label, (4, 64, 8), seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["A"], other["A"])
    assert len(np.unique(first["A"])) >= 5


def test_packing_of_four_bit_codes_and_back():
    codes = np.random.default_rng(0).integers(0, 16, (2, 64, 8), np.uint8)
    for axis in (1, 2):
        assert np.array_equal(unpacked(packed(codes, axis), axis), codes)
    i = get_instruction(
        "RTX Blackwell", "mma_block_scale", "m16n8k64.block32.f32.e2m1.e2m1.f32.ue8m0"
    )
    found = vectors_of(i, VECTORS)
    assert found["A"].shape[2] == 64 and found["B"].shape[1] == 64


# ---- the document


def result(i, **about):
    usual = marks.result_of(Outcome(i, EQUAL, 1000), Gpu(OLDEST[i.arch]), "2026-01-31", 0)
    return replace(usual, **about)


def test_the_document_is_what_the_generator_gives():
    document = marks.DOCUMENT.read_text(encoding="utf-8")
    assert marks.with_table(document, marks.read_results(), VECTORS) == document, (
        "run python -m mpcore.matmul.silicon --docs"
    )
    rows = [line for line in document.splitlines() if line.startswith("| `")]
    named = sorted(row.split("`")[1] for row in rows)
    assert named == sorted(f"{i.kind} {i.qualifier}" for i in TABLE)


@pytest.mark.parametrize("place", [0, 60, 178])
def test_a_result_marks_exactly_its_row(place):
    i = TABLE[place]
    given = replace(result(TABLE[0]), instruction=str(i), unit=repr(i.unit))
    before = marks.table([], VECTORS).splitlines()
    after = marks.table([given], VECTORS).splitlines()
    changed = [(b, a) for b, a in zip(before, after, strict=True) if b != a]
    assert len(changed) == 2 and "1 are equal to silicon" in changed[0][1]
    assert changed[1][0].startswith(f"| `{i.kind} {i.qualifier}`")
    assert changed[1][1] == changed[1][0].replace(
        "reference only", "equal to silicon (Stand-in GPU, CUDA 12.9, 2026-01-31, 1,000 cases)"
    )


def test_a_difference_outweighs_and_a_changed_unit_ends_a_result():
    i = TABLE[0]
    wrong = result(i, status=DIFFERENT, different=3, device="Other GPU", first="class far, …")
    assert marks.mark_of(i, [result(i), wrong]).startswith("**differs from silicon** (Other GPU")
    stale = result(i, unit=repr(AlignedSum(4, 22)))
    assert marks.mark_of(i, [stale]) == marks.REFERENCE_ONLY


def test_results_are_kept_and_a_new_one_replaces_that_of_the_same_device(tmp_path):
    old = [result(TABLE[3], device='GPU "x"'), result(TABLE[3])]
    new = [result(TABLE[3], cases=5), result(TABLE[0], first="é \\ \n")]
    both = marks.merged(old, new)
    path = tmp_path / "silicon.toml"
    path.write_text(marks.results_text(both), encoding="utf-8")
    assert marks.read_results(path) == both
    assert [r.instruction for r in both] == [str(TABLE[n]) for n in (0, 3, 3)]
    assert {r.cases for r in both if r.device == "Stand-in GPU"} == {1000, 5}
    kept = marks.RESULTS.read_text(encoding="utf-8")
    assert marks.results_text(marks.read_results()) == kept


@pytest.mark.parametrize(
    "text", ["[[result]]\n", "result = 1\n", "[", "[[result]]\ninstruction = 1\n"]
)
def test_a_broken_file_of_results_is_told_in_one_line(text, tmp_path):
    path = tmp_path / "silicon.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as refusal:
        marks.read_results(path)
    assert str(path) in str(refusal.value) and "\n" not in str(refusal.value)


def test_write_keeps_what_was_found_and_marks_the_document(tmp_path, monkeypatch, capsys):
    for name in ("RESULTS", "DOCUMENT"):
        copy = tmp_path / getattr(marks, name).name
        shutil.copy(getattr(marks, name), copy)
        monkeypatch.setattr(marks, name, copy)
    i = get_instruction("Turing", "mma", "m16n8k8.f32.f16.f16.f32")
    gpu = Gpu((7, 5), compute=with_unit(i, AlignedSum(8, 23)))
    given = ["--write", "--gate", "--cases", "1000"]
    assert command.main(given, find=lambda number: gpu) == 1
    assert "5 instructions: 4 equal, 1 different, 0 failed" in capsys.readouterr().out
    results = marks.read_results()
    assert [r.status for r in results] == [EQUAL] * 3 + [DIFFERENT] + [EQUAL]
    assert results[3].first.startswith("class ")
    document = marks.DOCUMENT.read_text(encoding="utf-8")
    assert "4 are equal to silicon, 1 differ from it, 174 are reference only" in document
    assert document.count("Stand-in GPU") == 5
