"""Nearly right answers: what comes first, whatever the seed, tells each from a right one."""

from __future__ import annotations

import numpy as np
import pytest
from test_exercises import EXERCISES, run_source

from mpcore.workbook.exercise import agree

MUTANTS = {
    "decode_e4m3": [
        ("code >> 3 & 15,", "code >> 3 & 7,"),
        ("code & 7\n", "code & 3\n"),
        ("code & 128", "code & 64"),
        ("if field > 0 else 0", "if field > 1 else 0"),
        ("max(field, 1)", "field"),
        ("trailing / 8", "trailing / 7"),
        ("- 7)", "- 8)"),
        ("return sign", "return float('inf') if field == 15 else sign"),
        ("return sign", "return float('nan') if field == 15 and trailing else sign"),
        ("return sign", "return sign * 240.0 if field == 15 else sign"),
        ("return sign", "return sign * 448.0 if field == 15 else sign"),
    ],
    "step_at": [
        ("np.floor(np.log2(x))", "np.round(np.log2(x))"),
        ("np.floor(np.log2(x))", "np.ceil(np.log2(x)) - 1"),
        ("np.floor(np.log2(x))", "np.trunc(np.log2(x))"),
        ("np.floor(np.log2(x))", "np.frexp(x)[1]"),
        ("np.floor(np.log2(x))", "np.floor(np.log2(np.float16(x)))"),
        ("np.floor(np.log2(x))", "max(np.floor(np.log2(x)), -13)"),
        ("np.floor(np.log2(x))", "min(np.floor(np.log2(x)), 14)"),
        ("exponent - 10", "exponent - 9"),
    ],
    "round_to_fp4": [
        ("3, 6])", "3, 6, 8])"),
        ("abs(x)))]", "abs(x)))] if abs(x) <= 7 else abs(x)"),
        ("abs(x)))]", "abs(x)))] if abs(x) <= 6 else 8"),
        ("abs(x)))]", "abs(x)))] if abs(x) <= 6 else np.inf"),
        ("1.5, 3, 6])", "3, 6])"),
        ("[0.0, 1, 2, 4, 0.5, 1.5, 3, 6]", "[0.0, 0.5, 1, 1.5, 2, 3, 4, 6]"),
        ("[0.0, 1, 2, 4, 0.5, 1.5, 3, 6]", "[6.0, 4, 3, 2, 1.5, 1, 0.5, 0]"),
        ("np.copysign(nearest, x) if nearest else 0.0", "nearest"),
        *(
            ("abs(x)))]", f"abs(x)))] if abs(x) != {tie} else {wrong}")
            for tie, wrong in [
                (0.25, 0.5),
                (0.75, 0.5),
                (1.25, 1.5),
                (1.75, 1.5),
                (2.5, 3),
                (3.5, 3),
                (5, 6),
            ]
        ),
    ],
    "power_of_two_scale": [
        ("<= 0.875", "<= 0.9375"),  # 480
        ("<= 0.875", "<= 0.90625"),  # 464
        ("<= 0.875", "< 0.875"),
        ("<= 0.875", "<= 0.75"),  # 384
        ("<= 0.875", "<= 0.5"),  # 256
        ("<= 0.875", "< 1"),
        ("9 - exponent if", "10 - exponent if"),
        ("2.0 ** (", "2.0 ** min(0, "),
    ],
    "flushed_share": [
        ("(rounded == 0) & (x != 0)", "(rounded == 0) & (x > 0)"),
        ("(rounded == 0) & (x != 0)", "(abs(x) < 2.0**-25) & (x != 0)"),
        ("(rounded == 0) & (x != 0)", "(abs(x) <= 2.0**-24) & (x != 0)"),
        ("(rounded == 0) & (x != 0)", "(x <= 2.0**-25) & (x != 0)"),
        ('"fp16")', '"fp16", "toward_zero")'),
        ('"fp16")', '"bf16")'),
        ("/ x.size", "/ 200"),
        ("/ x.size", ""),
    ],
    "sequential_sum": [
        ("in terms:", "in terms[1:]:"),
        ("in terms:", "in terms[:-1]:"),
        ("in terms:", "in sorted(terms):"),
        ("in terms:", "in sorted(terms, key=abs):"),
        ('"bf16")', '"fp16")'),
        ('"bf16")', '"fp32")'),
        ('"bf16")', '"bf16", "toward_zero")'),
        ('"bf16")', '"bf16", "nearest_away")'),
    ],
    "stalls_at": [
        ("term * 2.0**precision", "max(term, 1) * 2.0**precision"),
        ("term * 2.0**precision", "min(term, 1) * 2.0**precision"),
        ("term * 2.0**precision", "2.0**precision / term"),
        ("term * 2.0**precision", "term * 2.0**8"),
        ("term * 2.0**precision", "term * (2.0**precision - 1)"),
        ("term * 2.0**precision", "term * 2.0**min(precision, 8)"),
    ],
    "pairwise_sum": [
        ("terms.size > 1", "terms.size > 2"),
        ("terms[0::2] + terms[1::2]", "terms[0::2] + terms[::-1][0::2]"),
        ("terms[0::2] + terms[1::2]", "terms[0::2] + terms[1::2][::-1]"),
        ('"bf16")', '"fp16")'),
        ('"bf16")', '"fp32")'),
        ('"bf16")', '"bf16", "toward_zero")'),
        ('"bf16")', '"bf16", "nearest_away")'),
    ],
    "split_k_sum": [
        ("np.split(terms, parts)", "np.split(terms, 2)"),
        ("np.split(terms, parts)", "np.split(terms, terms.size // parts)"),
        ("np.split(terms, parts)", "np.split(terms, parts)[::-1]"),
        ("in piece:", "in piece[::-1]:"),
        ("in sums:", "in sums[::-1]:"),
        ('total + term, "bf16")', 'total + term, "fp32")'),
        ('total + part, "bf16")', 'total + part, "fp32")'),
        ('total + part, "bf16")', 'total + part, "bf16", "toward_zero")'),
        ("sums.append(total)", "sums.append(mp.round_to(sum(piece), 'bf16'))"),
    ],
    "kahan_sum": [
        ("term + carried", "term - carried"),
        ('mp.round_to(term + carried, "bf16")', "term + carried"),
        ('mp.round_to(total + y, "bf16")', "total + y"),
        ('mp.round_to(total + y, "bf16")', 'mp.round_to(total + term, "bf16")'),
        ("y - mp.round_to(new", "term - mp.round_to(new"),
        ("in terms:", "in terms[::-1]:"),
        ("total + y, ", "total + y + carried, "),
    ],
    "align_and_cut": [
        ("np.trunc", "np.round"),
        ("np.trunc", "np.floor"),
        ("np.trunc", "np.ceil"),
        ("np.trunc(terms / unit)", "(terms / unit)"),
        ("[1] - 1", "[1]"),
        ("[1] - 1", "[1] - 2"),
        ("abs(terms).max()", "terms.max()"),
        ("abs(terms).max()", "terms[0]"),
        ("abs(terms).max()", "abs(terms).sum()"),
        ("exponent - fraction", "-fraction"),
        ("np.frexp(abs(terms).max())[1] - 1", "np.round(np.log2(abs(terms).max()))"),
        ("np.frexp(abs(terms).max())[1] - 1", "np.ceil(np.log2(abs(terms).max()))"),
        ("np.trunc(terms / unit)", "(np.trunc(terms / unit) * (abs(terms) >= 2 * unit))"),
    ],
    "last_bit": [
        ("found == expected", "found > 0"),
        ("found == expected", "found < 1"),
        ("[-1]", "[0]"),
        ("[-1]", "[-1] + 1"),
        ("np.flatnonzero(found == expected)[-1]", "np.argmin(found) - 1"),
        ("np.flatnonzero(found == expected)[-1]", "(found == expected).sum()"),
        ("np.flatnonzero(found == expected)[-1]", "min(len(found) - 2, (found > 0).sum() - 1)"),
    ],
    "promote": [
        ("part = 0.0", "part = total"),
        ("start : start + every", "start : start + every - 1"),
        ("start : start + every", "start + 1 : start + every"),
        ("0, len(products), every", "0, len(products) - every + 1, every"),
        ("part + product, ", "product, "),
        ('"e8m13", "toward_zero"', '"e8m13"'),
        ('"e8m13", "toward_zero"', '"bf16", "toward_zero"'),
        ('"e8m13", "toward_zero"', '"fp32", "toward_zero"'),
        ('total + part, "fp32"', 'total + part, "e8m13"'),
        ('total + part, "fp32"', 'total + part, "bf16"'),
        ('total + part, "fp32"', 'total + part, "fp32", "toward_zero"'),
        ('mp.round_to(total + part, "fp32")', "total + part"),
    ],
    "most_cut": [
        ("np.ceil(len(products) / length)", "len(products) // length"),
        ("np.ceil(len(products) / length)", "len(products) / length + 1"),
        ("np.ceil(len(products) / length)", "np.round(len(products) / length)"),
        ("chunks * length *", "chunks *"),
        ("chunks * length *", "len(products) *"),
        ("-fraction", "(1 - fraction)"),
        ("-fraction", "(-fraction - 1)"),
        ("abs(products).sum", "products.sum"),
        ("abs(products).sum()", "abs(products).max()"),
        ("abs(products).sum()", "abs(products.sum())"),
    ],
    "after_step": [
        ("scale / 2", "max(scale / 2, 1)"),
        ("scale / 2", "scale // 2"),
        ("scale / 2", "scale / 4"),
        ("scale * 2", "scale * 4"),
        ("scale * 2", "min(scale * 2, 2.0**24)"),
        ("== 5", "== 4"),
        ("return scale / 2, 0", "return scale / 2, 1"),
        ("return scale / 2, 0", "return scale, 0"),
        ("return scale, good_steps", "return scale, 0"),
    ],
    "unscale": [
        ("gradient.astype(np.float32)", "np.nan_to_num(gradient.astype(np.float32))"),
        ("gradient.astype(np.float32)", "abs(gradient.astype(np.float32))"),
        ("np.float32(scale)", "np.float16(scale)"),
        ("np.float32(scale)", "1024"),
        ("np.float32(scale)", "np.float32(scale) ** 2"),
        ("gradient.astype(np.float32) / np.float32(scale)", "gradient / scale"),
        ("/ np.float32(scale)", "/ np.float16(min(scale, 2.0**15))"),
    ],
    "must_skip": [
        ("np.isfinite(gradient).all()", "(np.isfinite(gradient).all() and gradient.any())"),
        ("np.isfinite(gradient).all()", "np.isfinite(gradient[0])"),
        ("np.isfinite(gradient).all()", "np.isfinite(gradient[-1])"),
        ("np.isfinite(gradient).all()", "np.isfinite(gradient.max())"),
        ("np.isfinite(gradient).all()", "np.isfinite(gradient.min())"),
        ("np.isfinite(gradient).all()", "np.isfinite((gradient**2).sum())"),
        ("np.isfinite(gradient).all()", "(abs(gradient) < 3e38).all()"),
        ("np.isfinite(gradient).all()", "not (abs(gradient) > 3.41e38).any()"),
        ("np.isfinite(gradient).all()", "np.isfinite(gradient.astype(np.float16)).all()"),
        ("np.isfinite(gradient).all()", "np.isfinite(gradient[gradient == gradient]).all()"),
        ("not np", "np"),
    ],
    "flushed_under_scale": [
        ("(rounded == 0) & (gradient != 0)", "(rounded == 0) & (gradient > 0)"),
        (
            "(rounded == 0) & (gradient != 0)",
            "(abs(gradient * scale) < 2.0**-25) & (gradient != 0)",
        ),
        (
            "(rounded == 0) & (gradient != 0)",
            "(abs(gradient * scale) < 2.0**-24) & (gradient != 0)",
        ),
        ('"fp16")', '"fp16", "toward_zero")'),
        ('"fp16")', '"bf16")'),
        ("gradient * np.float32(scale)", "gradient * 8"),
        ("np.count_nonzero(gradient)\n", "(np.count_nonzero(gradient) + 1)\n"),
        ("np.count_nonzero(gradient)\n", "(gradient > 0).sum()\n"),
    ],
    "steps_skipped": [
        ("np.ceil(", "np.round("),
        ("np.ceil(", "np.floor("),
        ("int(np.ceil((start - safe) / per_skip))", "(start - safe) // per_skip + 1"),
        ("max(0, ", "max(1, "),
        ("max(0, ", "abs("),
        ("/ per_skip", "/ 2"),
        ("/ per_skip", "/ min(per_skip, 2)"),
        ("start - safe", "start - safe + 1"),
        ("start - safe", "start - 16"),
    ],
    "window": [
        ("abs(gradient[gradient != 0])", "gradient[gradient > 0]"),
        ("flushed <= most", "flushed * sizes.size / gradient.size <= most"),
        ("<= most_flushed", "< most_flushed"),
        ("<= most_flushed", "<= 0.1"),
        ("<= mp.get_format(fmt).max", "< mp.get_format(fmt).max"),
        ("mp.get_format(fmt).max", "65504"),
        ("mp.round_to(scaled, fmt) == 0", "scaled < mp.get_format(fmt).smallest / 2"),
        ("mp.round_to(scaled, fmt) == 0", "scaled < mp.get_format(fmt).smallest"),
        ("mp.round_to(scaled, fmt)", 'mp.round_to(scaled, "fp16")'),
        ("usable[-1]", "usable[-1] + 1"),
    ],
}
"""Exercise -> (text of its solution, what a nearly right answer has there)."""


def test_every_exercise_has_nearly_right_answers():
    assert set(MUTANTS) == {e.reference.__name__ for e in EXERCISES}
    assert all(len(set(found)) == len(found) >= 5 for found in MUTANTS.values())


@pytest.mark.parametrize("e", EXERCISES, ids=lambda e: e.name)
def test_a_nearly_right_answer_is_told_by_an_instance_that_every_seed_has(e):
    name = e.reference.__name__
    for before, after in MUTANTS[name]:
        question, _, body = e.solution_source().rpartition('"""\n')
        assert before in body
        nearly = run_source(f'{question}"""\n{body.replace(before, after)}')[name]
        with np.errstate(all="ignore"):
            found = [agree(nearly(**i), e.reference(**i), e.tolerance) for i in e.telling]
        assert not all(found), f"{name} with {after} instead of {before} passes"


@pytest.mark.parametrize("e", EXERCISES, ids=lambda e: e.name)
def test_telling_instances_come_first_whatever_the_seed(e):
    for seed in range(3):
        first = e.instances(seed)[: len(e.telling)]
        assert repr(first) == repr(list(e.telling))
        assert all(one is not other for one, other in zip(first, e.telling, strict=True))
